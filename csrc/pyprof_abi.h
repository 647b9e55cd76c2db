/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the BPF programs and user space share: records, map keys and values, counters, reasons.
 * The only place where these are declared; Cython and cffi read them from here. */
#ifndef PYPROF_ABI_H
#define PYPROF_ABI_H

#ifndef __bpf__
#include <assert.h>
#include <stddef.h>
#endif
#include <linux/types.h>

#define PYPROF_ABI_VERSION	 1
#define PYPROF_NAME_LEN		 16 /* TASK_COMM_LEN */
#define PYPROF_MAX_USER_FRAMES	 1024
#define PYPROF_MAX_KERNEL_FRAMES 127 /* kernel.perf_event_max_stack's default */

/* Why the unwinder stopped. Everything but COMPLETE is counted in the report under its text. */
#define PYPROF_ENDS(X)                                                                             \
	X(COMPLETE, "complete")                                                                    \
	X(FRAME_POINTER, "frame pointer does not lead on")                                         \
	X(UNREADABLE, "stack memory not readable")                                                 \
	X(NO_MAPPING, "address in no executable mapping")                                          \
	X(TOO_DEEP, "more frames than a sample holds")                                             \
	X(COMPAT, "32-bit code")                                                                   \
	X(KERNEL_TOO_DEEP, "more kernel frames than a sample holds")                               \
	X(PROCESS_GONE, "process ended before its mappings were known")

enum pyprof_end {
#define X(name, text) PYPROF_END_##name,
	PYPROF_ENDS(X)
#undef X
	    PYPROF_END_COUNT,
};

/* Per-CPU counters of the BPF side. */
#define PYPROF_COUNTERS(X)                                                                         \
	X(TAKEN, "taken")                                                                          \
	X(IDLE, "idle")                                                                            \
	X(RING_FULL, "ring buffer full")

enum pyprof_counter {
#define X(name, text) PYPROF_COUNTER_##name,
	PYPROF_COUNTERS(X)
#undef X
	    PYPROF_COUNTER_COUNT,
};

/* A user frame. mapping is the number that user space gave to the mapping which held pc when the
 * sample was taken; 0 when the kernel side does not know the process yet. */
struct pyprof_frame {
	__u64 pc;
	__u32 mapping;
	__u32 reserved;
};

/* Head of a ring buffer record; user_frames of struct pyprof_frame follow, leaf first, then
 * kernel_frames addresses, leaf first. */
struct pyprof_sample {
	__u64 time;	  /* CLOCK_MONOTONIC, ns */
	__u64 start_time; /* of the thread group leader, ns since boot */
	__u32 pid;	  /* thread group */
	__u32 tid;
	__u16 user_frames;
	__u16 kernel_frames;
	__u8 end; /* enum pyprof_end of the user stack */
	__u8 in_kernel;
	__u8 is_kernel_thread;
	__u8 reserved;
	char process_name[PYPROF_NAME_LEN]; /* comm of the leader */
	char thread_name[PYPROF_NAME_LEN];
};

/* Key of exec_mappings, an LPM trie: both fields big-endian, prefix_len counts from pid on. */
struct pyprof_mapping_key {
	__u32 prefix_len;
	__u32 pid;
	__u64 address;
};

#define PYPROF_KEY_BITS 96

struct pyprof_mapping_value {
	__u64 start;
	__u64 last; /* inclusive: a range may end at 2^64 */
	__u64 bias; /* pc - bias is the offset in the file */
	__u32 mapping;
	__u32 executable;
};

/* Set once before load; features are probed, never inferred from a version. */
struct pyprof_config {
	__u32 wakeup_bytes; /* unread bytes in the ring from which user space is woken */
	__u32 has_loop;	    /* bpf_loop() is there */
};

_Static_assert(sizeof(struct pyprof_frame) == 16, "record layout");
_Static_assert(sizeof(struct pyprof_sample) == 64, "record layout");
_Static_assert(sizeof(struct pyprof_mapping_key) == 16, "no padding in a hashed key");
_Static_assert(sizeof(struct pyprof_mapping_value) == 32, "map layout");

#endif
