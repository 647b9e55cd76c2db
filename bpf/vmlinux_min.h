/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The few kernel types that the programs read; offsets are relocated at load from the kernel's BTF,
 * so that the build does not depend on any kernel's headers. */
#ifndef PYPROF_VMLINUX_MIN_H
#define PYPROF_VMLINUX_MIN_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct mm_struct {
	unsigned long exec_vm;
};

struct task_struct {
	unsigned int flags;
	unsigned int in_execve : 1;
	struct mm_struct *mm;
	int pid;
	int tgid;
	__u64 start_boottime;
	__u64 self_exec_id;
	struct task_struct *group_leader;
	char comm[16];
};

#pragma clang attribute pop

#define PF_KTHREAD 0x00200000

#endif
