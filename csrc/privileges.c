/* SPDX-License-Identifier: Apache-2.0 */
/* Capabilities by their system calls: libcap is not needed for these. See capabilities(7). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "privileges.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_CAPABILITIES = 64 };

int pyprof_capabilities_keep(uint64_t keep)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &header, data))
		return -errno;
	for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
		data[i].permitted &= (uint32_t)(keep >> (32 * i));
		data[i].effective = data[i].permitted;
		data[i].inheritable = 0;
	}
	/* EINVAL: the kernel has no ambient set. */
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL)
		return -errno;
	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

int pyprof_capabilities_bound(uint32_t *unbounded)
{
	*unbounded = 0;
	for (unsigned long number = 0; number < MOST_CAPABILITIES; number++) {
		int there = prctl(PR_CAPBSET_READ, number, 0, 0, 0);

		if (there < 0) /* the kernel knows no more */
			break;
		if (there && prctl(PR_CAPBSET_DROP, number, 0, 0, 0)) {
			if (errno != EPERM)
				return -errno;
			(*unbounded)++;
		}
	}
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ? -errno : 0;
}
