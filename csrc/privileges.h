/* SPDX-License-Identifier: Apache-2.0 */
/* Giving up capabilities. They belong to a thread: threads that start later inherit what is left,
 * those that run already keep theirs. */
#ifndef PYPROF_PRIVILEGES_H
#define PYPROF_PRIVILEGES_H

#include <stdint.h>

/* cffi begin */
/* Leaves the calling thread only those capabilities of keep (bit n: capability n) that it has, and
 * none to programs that it might run. 0 or a negative errno. */
int pyprof_capabilities_keep(uint64_t keep);
/* Has no program that the calling thread might run gain privileges: no_new_privs, and an empty
 * bounding set. The latter needs CAP_SETPCAP: *unbounded is how many are left in it. 0 or a
 * negative errno. */
int pyprof_capabilities_bound(uint32_t *unbounded);
/* cffi end */

#endif
