// SPDX-License-Identifier: Apache-2.0
/* A library with three functions, each at the start of a page of its own, that need nothing but
 * their own code: -DNAME=alpha and -DNAME=omega give two of the same size and layout. */
#define PASTE(a, b)  a##b
#define EXPAND(a, b) PASTE(a, b)

#define PART(part)                                                                                 \
	__attribute__((section(".text.parts"), aligned(4096))) void EXPAND(NAME, part)(            \
	    volatile unsigned *left)                                                               \
	{                                                                                          \
		while (*left)                                                                      \
			*left = *left - 1;                                                         \
	}

PART(_low)
PART(_busy)
PART(_high)
