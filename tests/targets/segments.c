// SPDX-License-Identifier: Apache-2.0
/* main -> outer -> distant -> leaf; distant lies in another executable segment if the linker is
 * told so, with --section-start=.text_far=ADDRESS. */
#include "known.h"

KEEP void leaf(void)
{
	work(1000);
}

__attribute__((section(".text_far"))) KEEP void distant(void)
{
	while (!done) {
		leaf();
		work(1000);
	}
}

KEEP void outer(void)
{
	distant();
	stay();
}

int main(void)
{
	ready();
	outer();
	return 0;
}
