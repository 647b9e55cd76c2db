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

#include "pyprof_rules.h"

#define PYPROF_ABI_VERSION	 1
#define PYPROF_NAME_LEN		 16 /* TASK_COMM_LEN */
#define PYPROF_MAX_USER_FRAMES	 1024
#define PYPROF_PLAIN_LOOP_FRAMES 512 /* where the kernel has no bpf_loop() */
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
	X(PROCESS_GONE, "process ended before its mappings were known")                            \
	X(RULE_UNSUPPORTED, "unwind rule not supported")                                           \
	X(REGISTER_LOST, "unwind rule needs a register that is lost")                              \
	X(STACK_ORDER, "caller's frame does not lie above")                                        \
	X(NOT_LOADED, "unwind rows not loaded")                                                    \
	X(SLICE_SHORT, "stack deeper than its copy")                                               \
	X(STALE, "mapping changed before the kernel side knew")

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
	X(RING_FULL, "ring buffer full")                                                           \
	X(SLICES, "stack copies")                                                                  \
	X(SLICES_LOST, "stack copies without room")                                                \
	X(FAILED, "sampler failed")

enum pyprof_counter {
#define X(name, text) PYPROF_COUNTER_##name,
	PYPROF_COUNTERS(X)
#undef X
	    PYPROF_COUNTER_COUNT,
};

/* The pc of a frame is that of an instruction to be executed, not a return address: the innermost
 * frame unless it made a system call, and one that a signal interrupted. Others are looked up one
 * byte before. */
#define PYPROF_FRAME_EXACT 1

/* A user frame. mapping is the number that user space gave to the mapping which held pc when the
 * sample was taken; 0 when the kernel side does not know it. */
struct pyprof_frame {
	__u64 pc;
	__u32 mapping;
	__u32 flags; /* PYPROF_FRAME_* */
};

enum pyprof_record {
	PYPROF_RECORD_SAMPLE = 1,
	PYPROF_RECORD_SLICE = 2,
};

/* Head of a ring buffer record; user_frames of struct pyprof_frame follow, leaf first, then
 * kernel_frames addresses, leaf first. */
struct pyprof_sample {
	__u32 record;	  /* PYPROF_RECORD_SAMPLE */
	__u32 slice;	  /* number of the slice from which the walk goes on in user space, or 0 */
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
	__u32 cpu;
	/* What tells of events whose records were lost, and of those that have none: how many
	 * programs were executed before (task_struct.self_exec_id), and how many pages are mapped
	 * executable and not writable (mm_struct.exec_vm). */
	__u32 exec_id;
	__u32 exec_pages;
	__u32 reserved2;
	char process_name[PYPROF_NAME_LEN]; /* comm of the leader */
	char thread_name[PYPROF_NAME_LEN];
};

/* A walk that the kernel side could not go on with, for want of a mapping or of unwind rows: the
 * registers of the frame where it stood, which is the last one in the sample, and the stack from
 * there on. It precedes its sample in the ring, with samples of other CPUs possibly between. */
#define PYPROF_SLICE_PAGES 7
#define PYPROF_SLICE_BYTES (PYPROF_SLICE_PAGES * 4096)
#define PYPROF_REGISTERS   16

/* Which of a frame's registers are known besides pc, sp and fp. */
enum pyprof_known {
	PYPROF_KNOWN_NONE = 0,
	PYPROF_KNOWN_ALL = 1, /* the innermost frame */
	PYPROF_KNOWN_RBX = 2, /* rules said where it is */
};

#define PYPROF_RBX 3 /* its DWARF number */

struct pyprof_slice {
	__u32 record; /* PYPROF_RECORD_SLICE */
	__u32 number;
	__u32 cpu;
	__u32 size; /* bytes of stack that follow, up to the last page that was there */
	__u64 base; /* their address */
	__u64 pc;
	__u64 sp;
	__u64 fp;
	__u64 registers[PYPROF_REGISTERS]; /* by DWARF number */
	__u8 has_registers;		   /* enum pyprof_known */
	__u8 has_fp;
	__u8 exact;
	/* A bit a page of memory, from the one that holds base on: it was not there to be copied.
	 * A program need not have touched all of a large frame. */
	__u8 holes;
	__u8 reserved[4];
};

/* Unwind rows. The file is cut into pages of 64 KiB; a page's rows are an array of 16-bit offsets
 * in the page, ascending, the first one 0, and behind it an array of as many rule numbers. Both lie
 * in one chunk of the arena. A row holds up to the next one. */
#define PYPROF_PAGE_BITS   16
#define PYPROF_CHUNK_BITS  20
#define PYPROF_CHUNK_BYTES (1 << PYPROF_CHUNK_BITS)
#define PYPROF_MAX_CHUNKS  1024
#define PYPROF_MAX_RULES   32768
#define PYPROF_PAGE_PARTS  16

struct pyprof_page_key {
	__u32 executable;
	__u32 page; /* file offset >> PYPROF_PAGE_BITS */
};

struct pyprof_page {
	__u32 at; /* of the first offset, in bytes from the start of the chunk; even */
	__u16 chunk;
	__u16 last;			 /* number of the last row */
	__u16 starts[PYPROF_PAGE_PARTS]; /* the row that holds at each 4 KiB of the page */
};

/* What the kernel side is to make of an address without a page. */
enum pyprof_executable_state {
	PYPROF_EXECUTABLE_LOADED = 1, /* its rows are there: this address has none */
};

/* Key of exec_mappings, an LPM trie: both fields big-endian, prefix_len counts from pid on. */
struct pyprof_mapping_key {
	__u32 prefix_len;
	__u32 pid;
	__u64 address;
};

#define PYPROF_KEY_BITS 96

/* Lower numbers stand for memory without a file. */
#define PYPROF_FIRST_EXECUTABLE 2

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
_Static_assert(sizeof(struct pyprof_sample) == 88, "record layout");
_Static_assert(sizeof(struct pyprof_slice) == 184, "record layout");
_Static_assert(sizeof(struct pyprof_page_key) == 8, "no padding in a hashed key");
_Static_assert(sizeof(struct pyprof_page) == 40, "map layout");
_Static_assert(sizeof(struct pyprof_mapping_key) == 16, "no padding in a hashed key");
_Static_assert(sizeof(struct pyprof_mapping_value) == 32, "map layout");

#endif
