/* SPDX-License-Identifier: Apache-2.0 */
/* The shim over libbpf and perf_event_open that Python calls through cffi: nothing in it runs for a
 * single sample. Functions return 0 or a file descriptor, or a negative errno. */
#ifndef PYPROF_LOADER_H
#define PYPROF_LOADER_H

#include <stddef.h>
#include <stdint.h>

#include "pyprof_abi.h"
#include "unwind_host.h"

/* cffi begin */
struct pyprof_bpf;

/* Loads the object. ring_bytes: a power of two, at least a page. mapping_entries: capacity of
 * exec_mappings. force_plain_loop: do without bpf_loop() even where the kernel has it. */
int pyprof_bpf_load(const void *object, size_t size, uint32_t ring_bytes, uint32_t wakeup_bytes,
		    uint32_t mapping_entries, int force_plain_loop, struct pyprof_bpf **ret);
void pyprof_bpf_close(struct pyprof_bpf *bpf);
/* Makes the programs forget what they have found: to be called after mappings or pages changed. */
void pyprof_bpf_changed(const struct pyprof_bpf *bpf);
int pyprof_bpf_map_fd(const struct pyprof_bpf *bpf, const char *name);
int pyprof_bpf_program_fd(const struct pyprof_bpf *bpf, const char *name);

/* What libbpf said since the last load began, for error messages. */
const char *pyprof_bpf_log(void);
const char *pyprof_libbpf_version(void);

/* Writes or deletes entries of a map. *done is how many were; deleting what is not there counts as
 * done. */
int pyprof_map_update(int fd, const void *keys, uint32_t key_size, const void *values,
		      uint32_t value_size, uint32_t count, uint32_t *done);
int pyprof_map_delete(int fd, const void *keys, uint32_t key_size, uint32_t count, uint32_t *done);
/* Makes a chunk of the arena and puts it into the map of chunks; its descriptor. */
int pyprof_chunk_create(int chunks_fd, uint32_t index);
/* Copies up to capacity keys of a map to keys; *count is how many it holds. */
int pyprof_map_keys(int fd, uint32_t key_size, void *keys, uint32_t capacity, uint32_t *count);
/* The kernel's own longest-prefix look-up; -ENOENT where there is none. */
int pyprof_mappings_lookup(int fd, uint32_t pid, uint64_t address, uint32_t *mapping);

/* Sums the per-CPU counters into totals[PYPROF_COUNTER_COUNT]. */
int pyprof_counters_read(int fd, uint64_t *totals);

/* One sampling event on a CPU, enabled, with the program attached. cycles: hardware cycles instead
 * of cpu-clock. */
int pyprof_perf_sampler(int cpu, uint32_t hz, int cycles, int program_fd);
/* One event that reports mmap2, comm, fork and exit of a CPU; wakeup_bytes: unread bytes that wake.
 * With build_ids, mmap records carry build IDs (-EINVAL on kernels without). */
int pyprof_perf_sideband(int cpu, int build_ids, uint32_t wakeup_bytes);
int pyprof_perf_enable(int fd, int enable);

/* 1 where the kernel lets a perf_event program call a helper (by its number, BPF_FUNC_*), 0 where
 * not. Says nothing where BPF is refused as a whole. */
int pyprof_probe_helper(uint32_t helper);
/* 0 where a minimal perf_event program loads. */
int pyprof_probe_program(void);

/* Names of the X-macro lists; NULL past the end. */
const char *pyprof_end_text(uint32_t end);
const char *pyprof_counter_text(uint32_t counter);
/* cffi end */

#endif
