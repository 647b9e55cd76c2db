// SPDX-License-Identifier: Apache-2.0
/* Exceptions in flight: main -> catches -> through -> through -> throws, and from there libstdc++
 * and libgcc_s; the destructors of Guard run on the way. */
#include "known.h"

struct Guard {
	KEEP ~Guard()
	{
		work(10);
	}
};

KEEP void throws()
{
	work(10);
	throw 1;
}

KEEP void through(int times)
{
	Guard guard;

	if (times > 1)
		through(times - 1);
	else
		throws();
	stay();
}

KEEP void catches()
{
	try {
		through(2);
	} catch (int number) {
		sink = sink + static_cast<uint64_t>(number);
	}
}

int main()
{
	ready();
	while (!done)
		catches();
	return 0;
}
