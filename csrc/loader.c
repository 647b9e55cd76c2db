// SPDX-License-Identifier: Apache-2.0
/* libbpf and perf_event_open for Python: load, attach, map access. See loader.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* vasprintf */
#endif
#include "loader.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <limits.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct pyprof_bpf {
	struct bpf_object *object;
	uint32_t *epoch;
};

/* libbpf's messages of the last load; the verifier's log can be long, its end says what is wrong.
 */
static char log_text[8192];
static size_t log_used;

static int keep_log(enum libbpf_print_level level, const char *format, va_list args)
{
	const size_t room = sizeof(log_text) - 1;
	char *line = NULL;
	size_t length, keep;

	if (level == LIBBPF_DEBUG || vasprintf(&line, format, args) < 0)
		return 0;
	length = strlen(line);
	if (length >= room) {
		memcpy(log_text, line + length - room, room);
		log_used = room;
	} else {
		keep = log_used < room - length ? log_used : room - length;
		memmove(log_text, log_text + log_used - keep, keep);
		memcpy(log_text + keep, line, length);
		log_used = keep + length;
	}
	log_text[log_used] = 0;
	free(line);
	return (int)(length < INT_MAX ? length : INT_MAX);
}

const char *pyprof_bpf_log(void)
{
	return log_text;
}

const char *pyprof_libbpf_version(void)
{
	return libbpf_version_string();
}

int pyprof_probe_helper(uint32_t helper)
{
	return libbpf_probe_bpf_helper(BPF_PROG_TYPE_PERF_EVENT, (enum bpf_func_id)helper, NULL) ==
	       1;
}

int pyprof_probe_program(void)
{
	const struct bpf_insn insns[] = {
	    {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
	    {.code = BPF_JMP | BPF_EXIT},
	};
	int fd = bpf_prog_load(BPF_PROG_TYPE_PERF_EVENT, "probe", "GPL", insns, 2, NULL);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

/* The object's global variables, as memory that the programs see. */
static void *globals(struct bpf_object *object, size_t *size)
{
	struct bpf_map *map;

	bpf_object__for_each_map(map, object)
	{
		const char *name = bpf_map__name(map);
		size_t length = strlen(name);

		if (length > 4 && !strcmp(name + length - 4, ".bss"))
			return (void *)bpf_map__initial_value(map, size);
	}
	return NULL;
}

static int configure(struct bpf_object *object, uint32_t ring_bytes, uint32_t mapping_entries,
		     const struct pyprof_config *config)
{
	struct bpf_map *samples = bpf_object__find_map_by_name(object, "samples");
	struct bpf_map *mappings = bpf_object__find_map_by_name(object, "exec_mappings");
	struct bpf_map *map, *rodata = NULL;
	int err;

	bpf_object__for_each_map(map, object)
	{
		const char *name = bpf_map__name(map);
		size_t length = strlen(name);

		if (length > 7 && !strcmp(name + length - 7, ".rodata"))
			rodata = map;
	}
	if (!samples || !mappings || !rodata || bpf_map__value_size(rodata) != sizeof(*config))
		return -ENOEXEC;
	err = bpf_map__set_max_entries(samples, ring_bytes);
	if (!err)
		err = bpf_map__set_max_entries(mappings, mapping_entries);
	if (!err)
		err = bpf_map__set_initial_value(rodata, config, sizeof(*config));
	return err;
}

int pyprof_bpf_load(const void *object, size_t size, uint32_t ring_bytes, uint32_t wakeup_bytes,
		    uint32_t mapping_entries, int force_plain_loop, struct pyprof_bpf **ret)
{
	struct pyprof_config config = {
	    .wakeup_bytes = wakeup_bytes,
	    .has_loop = !force_plain_loop && pyprof_probe_helper(BPF_FUNC_loop),
	};
	LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = "pyprof");
	struct pyprof_bpf *bpf;
	int err;

	log_used = 0;
	log_text[0] = 0;
	libbpf_set_print(keep_log);
	bpf = calloc(1, sizeof(*bpf));
	if (!bpf)
		return -ENOMEM;
	bpf->object = bpf_object__open_mem(object, size, &options);
	if (!bpf->object) {
		err = -errno;
		free(bpf);
		return err;
	}
	err = configure(bpf->object, ring_bytes, mapping_entries, &config);
	if (!err)
		err = bpf_object__load(bpf->object);
	if (!err) {
		size_t size = 0;

		bpf->epoch = globals(bpf->object, &size);
		if (!bpf->epoch || size < sizeof(*bpf->epoch))
			err = -ENOEXEC;
	}
	if (err) {
		pyprof_bpf_close(bpf);
		return err;
	}
	*ret = bpf;
	return 0;
}

void pyprof_bpf_close(struct pyprof_bpf *bpf)
{
	if (!bpf)
		return;
	bpf_object__close(bpf->object);
	free(bpf);
}

void pyprof_bpf_changed(const struct pyprof_bpf *bpf)
{
	__atomic_fetch_add(bpf->epoch, 1, __ATOMIC_SEQ_CST);
}

int pyprof_bpf_map_fd(const struct pyprof_bpf *bpf, const char *name)
{
	return bpf_object__find_map_fd_by_name(bpf->object, name);
}

int pyprof_bpf_program_fd(const struct pyprof_bpf *bpf, const char *name)
{
	struct bpf_program *program = bpf_object__find_program_by_name(bpf->object, name);

	return program ? bpf_program__fd(program) : -ENOENT;
}

/* LPM tries have no batch operations before Linux 5.13 (commit f56407fa6e69). */
static int no_batch(int err)
{
	return err == -ENOTSUP || err == -524 /* ENOTSUPP */ || err == -EINVAL;
}

int pyprof_map_update(int fd, const void *keys, uint32_t key_size, const void *values,
		      uint32_t value_size, uint32_t count, uint32_t *done)
{
	const char *key = keys, *value = values;
	uint32_t batch = count;
	int err;

	*done = 0;
	if (!count)
		return 0;
	err = bpf_map_update_batch(fd, key, value, &batch, NULL);
	if (!err) {
		*done = count;
		return 0;
	}
	if (!no_batch(err)) {
		*done = batch < count ? batch : 0;
		return err;
	}
	for (; *done < count; (*done)++) {
		err = bpf_map_update_elem(fd, key + (size_t)*done * key_size,
					  value + (size_t)*done * value_size, BPF_ANY);
		if (err)
			return err;
	}
	return 0;
}

int pyprof_map_delete(int fd, const void *keys, uint32_t key_size, uint32_t count, uint32_t *done)
{
	const char *key = keys;
	uint32_t batch = count;
	int err;

	*done = 0;
	if (!count)
		return 0;
	if (!bpf_map_delete_batch(fd, key, &batch, NULL)) {
		*done = count;
		return 0;
	}
	/* A batch stops at the first key that is not there; the plain way goes on. */
	for (; *done < count; (*done)++) {
		err = bpf_map_delete_elem(fd, key + (size_t)*done * key_size);
		if (err && err != -ENOENT)
			return err;
	}
	return 0;
}

int pyprof_chunk_create(int chunks_fd, uint32_t index)
{
	LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = BPF_F_MMAPABLE);
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "chunk", sizeof(uint32_t), PYPROF_CHUNK_BYTES,
				1, &options);
	int err;

	if (fd < 0)
		return fd;
	err = bpf_map_update_elem(chunks_fd, &index, &fd, BPF_ANY);
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

int pyprof_map_keys(int fd, uint32_t key_size, void *keys, uint32_t capacity, uint32_t *count)
{
	uint8_t key[64], next[64];
	const void *from = NULL;

	*count = 0;
	if (key_size > sizeof(key))
		return -EINVAL;
	while (!bpf_map_get_next_key(fd, from, next)) {
		if (*count < capacity)
			memcpy((uint8_t *)keys + (size_t)*count * key_size, next, key_size);
		(*count)++;
		memcpy(key, next, key_size);
		from = key;
	}
	return errno == ENOENT ? 0 : -errno;
}

int pyprof_mappings_lookup(int fd, uint32_t pid, uint64_t address, uint32_t *mapping)
{
	struct pyprof_mapping_key key = {
	    .prefix_len = PYPROF_KEY_BITS,
	    .pid = __builtin_bswap32(pid),
	    .address = __builtin_bswap64(address),
	};
	struct pyprof_mapping_value value;
	int err = bpf_map_lookup_elem(fd, &key, &value);

	if (!err)
		*mapping = value.mapping;
	return err;
}

int pyprof_counters_read(int fd, uint64_t *totals)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t *values;

	if (cpus < 0)
		return cpus;
	values = calloc((size_t)cpus, sizeof(*values));
	if (!values)
		return -ENOMEM;
	for (uint32_t i = 0; i < PYPROF_COUNTER_COUNT; i++) {
		int err = bpf_map_lookup_elem(fd, &i, values);

		if (err) {
			free(values);
			return err;
		}
		totals[i] = 0;
		for (int cpu = 0; cpu < cpus; cpu++)
			totals[i] += values[cpu];
	}
	free(values);
	return 0;
}

static int perf_open(struct perf_event_attr *attr, int cpu)
{
	int fd = (int)syscall(SYS_perf_event_open, attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int pyprof_perf_enable(int fd, int enable)
{
	return ioctl(fd, enable ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, 0) ? -errno : 0;
}

int pyprof_perf_sampler(int cpu, uint32_t hz, int cycles, int program_fd)
{
	struct perf_event_attr attr = {
	    .size = sizeof(attr),
	    .type = cycles ? PERF_TYPE_HARDWARE : PERF_TYPE_SOFTWARE,
	    .config = cycles ? (uint64_t)PERF_COUNT_HW_CPU_CYCLES : PERF_COUNT_SW_CPU_CLOCK,
	    .sample_freq = hz,
	    .freq = 1,
	    .disabled = 1,
	};
	int fd = perf_open(&attr, cpu), err;

	if (fd < 0)
		return fd;
	if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program_fd)) {
		err = -errno;
		close(fd);
		return err;
	}
	err = pyprof_perf_enable(fd, 1);
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

#ifndef PERF_RECORD_MISC_MMAP_BUILD_ID
#error "linux/perf_event.h is older than Linux 5.12"
#endif

int pyprof_perf_sideband(int cpu, int build_ids, uint32_t wakeup_bytes)
{
	struct perf_event_attr attr = {
	    .size = sizeof(attr),
	    .type = PERF_TYPE_SOFTWARE,
	    .config = PERF_COUNT_SW_DUMMY,
	    .sample_type = PERF_SAMPLE_TIME,
	    .sample_id_all = 1,
	    .mmap = 1,
	    .mmap2 = 1,
	    .comm = 1,
	    .comm_exec = 1,
	    .task = 1,
	    .build_id = !!build_ids,
	    .ksymbol = 1,
	    .use_clockid = 1,
	    .clockid = CLOCK_MONOTONIC,
	    .watermark = 1,
	    .wakeup_watermark = wakeup_bytes,
	};

	return perf_open(&attr, cpu);
}

const char *pyprof_end_text(uint32_t end)
{
	static const char *const texts[] = {
#define X(name, text) text,
	    PYPROF_ENDS(X)
#undef X
	};

	return end < PYPROF_END_COUNT ? texts[end] : NULL;
}

const char *pyprof_counter_text(uint32_t counter)
{
	static const char *const texts[] = {
#define X(name, text) text,
	    PYPROF_COUNTERS(X)
#undef X
	};

	return counter < PYPROF_COUNTER_COUNT ? texts[counter] : NULL;
}
