/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the sampler shares with user space: its configuration and its maps. */
#ifndef PYPROF_MAPS_H
#define PYPROF_MAPS_H

#include "vmlinux_min.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "pyprof_abi.h"

const volatile struct pyprof_config config = {};

/* 32 bytes of value and about 64 of node an entry, allocated on need: 24 MiB when full. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct pyprof_mapping_key);
	__type(value, struct pyprof_mapping_value);
} exec_mappings SEC(".maps");

/* Resized before load, by rate and number of CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PYPROF_COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* The arena of unwind rows: chunks are made when they are needed, up to the cap. */
struct chunk {
	__u8 bytes[PYPROF_CHUNK_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, PYPROF_MAX_CHUNKS);
	__type(key, __u32);
	__array(
	    values, struct {
		    __uint(type, BPF_MAP_TYPE_ARRAY);
		    __uint(map_flags, BPF_F_MMAPABLE);
		    __uint(max_entries, 1);
		    __type(key, __u32);
		    __uint(value_size, PYPROF_CHUNK_BYTES);
	    });
} chunks SEC(".maps");

/* One entry a 64 KiB of code with rows in the arena: about 100 bytes, on need. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct pyprof_page_key);
	__type(value, struct pyprof_page);
} pages SEC(".maps");

/* enum pyprof_executable_state of the executables whose rows are in the arena. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} executables SEC(".maps");

/* 512 KiB; rules are shared by all executables. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PYPROF_MAX_RULES);
	__type(key, __u32);
	__type(value, struct pyprof_rule);
} rules SEC(".maps");

/* Bumped by user space after it has changed mappings or pages. */
volatile __u32 epoch = 0;

static inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		(*value)++;
}

#endif
