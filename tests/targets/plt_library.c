// SPDX-License-Identifier: Apache-2.0
/* What plt.c calls. */
void tiny(void);

void tiny(void)
{
}
