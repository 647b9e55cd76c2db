// SPDX-License-Identifier: Apache-2.0
/* Calls through the procedure linkage table, to be linked with plt_library.c and -z lazy:
 * plt            main -> hot -> tiny, bound after the first call
 * plt unbound    the same, bound anew by the dynamic linker at each call */
#include <link.h>
#include <string.h>

#include "known.h"

void tiny(void);

/* The slot through which tiny is called: the first one behind the three of the dynamic linker. */
static void **slot(void)
{
	void **table = NULL;

	for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++) {
		const ElfW(Rela) *relocations = (const ElfW(Rela) *)entry->d_un.d_ptr;

		if (entry->d_tag != DT_JMPREL)
			continue;
		for (int i = 0; !table; i++) {
			const ElfW(Sym) *symbols = NULL;
			const char *names = NULL;

			for (const ElfW(Dyn) *other = _DYNAMIC; other->d_tag != DT_NULL; other++) {
				if (other->d_tag == DT_SYMTAB)
					symbols = (const ElfW(Sym) *)other->d_un.d_ptr;
				if (other->d_tag == DT_STRTAB)
					names = (const char *)other->d_un.d_ptr;
			}
			if (!strcmp(names + symbols[ELF64_R_SYM(relocations[i].r_info)].st_name,
				    "tiny"))
				table = (void **)relocations[i].r_offset;
		}
	}
	return table;
}

KEEP void hot(void **to, void *unbound)
{
	while (!done) {
		tiny();
		if (to)
			*(void *volatile *)to = unbound;
	}
}

int main(int argc, char **argv)
{
	void **to = slot(); /* linked without -pie: addresses are as the file says */
	void *unbound = *to;

	ready();
	hot(argc > 1 && !strcmp(argv[1], "unbound") ? to : NULL, unbound);
	return 0;
}
