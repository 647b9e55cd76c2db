// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The sampler: at each tick of a CPU's perf event, the stack of what runs there goes to the ring
 * buffer, user addresses already resolved to mappings where the process is known. */
#include "vmlinux_min.h"
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "maps.h"
#include "registers.h"
#include "slice.h"
#include "window.h"

/* GPL: bpf_get_stack and the BTF helpers are for GPL programs only. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What was found for an address of a process, as long as user space changes nothing. Stacks repeat
 * themselves, above all at their roots: most look-ups of a walk end here, in one cache line instead
 * of the trie's, the page's and the rows' eight or so. */
struct found {
	__u64 pc;
	__u32 pid;
	__u32 epoch;
	__u32 mapping;
	__u32 rule;
};

#define FOUND_BITS 9

/* A record under construction and what the walk keeps: 30.7 KiB a CPU; 32 KiB is the most that a
 * per-CPU value may have. */
struct scratch {
	struct pyprof_sample head;
	struct pyprof_frame user[PYPROF_MAX_USER_FRAMES];
	__u64 kernel[PYPROF_MAX_KERNEL_FRAMES];
	/* State of the walk, not sent. */
	struct unwind_regs regs;
	struct window window;
	struct pyprof_mapping_value last;
	struct found found[1 << FOUND_BITS];
	__u32 epoch; /* as of the beginning of the sample */
	__u32 pid_be;
	__u32 slices;  /* taken on this CPU so far */
	__u8 unknown;  /* the process is not in exec_mappings */
	__u8 unloaded; /* the walk cannot go on here: user space is to */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Finds the mapping of an address, into s->last; its number, or 0. */
static inline __u32 find_mapping(struct scratch *s, __u64 pc)
{
	struct pyprof_mapping_key key = {
	    .prefix_len = PYPROF_KEY_BITS,
	    .pid = s->pid_be,
	    .address = bpf_cpu_to_be64(pc),
	};
	struct pyprof_mapping_value *value;

	/* The trie is the dear step; neighbouring frames mostly share a mapping. */
	if (pc >= s->last.start && pc <= s->last.last)
		return s->last.mapping;
	if (s->unknown)
		return 0;
	value = bpf_map_lookup_elem(&exec_mappings, &key);
	if (!value)
		return 0;
	s->last = *value;
	return value->mapping;
}

/* Number of the rule of an address in the mapping s->last; -1 where its rows are not loaded. */
static inline __s64 find_rule(struct scratch *s, __u64 pc)
{
	__u64 offset = pc - s->last.bias;
	struct pyprof_page_key key = {
	    .executable = s->last.executable,
	    .page = offset >> PYPROF_PAGE_BITS,
	};
	__u32 zero = 0, at;
	struct pyprof_page *page;
	const struct chunk *chunk;
	void *inner;

	if (s->last.executable < PYPROF_FIRST_EXECUTABLE)
		return PYPROF_RULE_NONE;
	page = bpf_map_lookup_elem(&pages, &key);
	if (!page)
		return bpf_map_lookup_elem(&executables, &key.executable) ? PYPROF_RULE_NONE : -1;
	at = page->chunk;
	inner = bpf_map_lookup_elem(&chunks, &at);
	if (!inner)
		return -1;
	chunk = bpf_map_lookup_elem(inner, &zero);
	if (!chunk)
		return -1;
	return unwind_rule_number(page, chunk->bytes, offset & ((1 << PYPROF_PAGE_BITS) - 1));
}

/* Appends the frame in s->regs and steps to its caller; 1 ends the walk. */
static inline long walk_step(__u32 i, struct scratch *s)
{
	struct pyprof_frame *frame;
	const struct pyprof_rule *rule;
	__u64 pc = unwind_lookup_pc(&s->regs);
	struct found *found;
	__u32 mapping, number;

	if (i >= PYPROF_MAX_USER_FRAMES)
		return 1;
	frame = &s->user[i];
	frame->pc = s->regs.pc;
	frame->flags = s->regs.exact ? PYPROF_FRAME_EXACT : 0;
	s->head.user_frames = i + 1;

	/* Multiplicative hashing; the factor is 2^64 divided by the golden ratio. */
	found = &s->found[((pc ^ s->head.pid) * 0x9e3779b97f4a7c15ull) >> (64 - FOUND_BITS)];
	if (found->pc == pc && found->pid == s->head.pid && found->epoch == s->epoch) {
		mapping = found->mapping;
		number = found->rule;
	} else {
		__s64 searched = -1;

		mapping = find_mapping(s, pc);
		if (!mapping && i == 0)
			s->unknown = 1;
		if (mapping)
			searched = find_rule(s, pc);
		if (searched < 0) {
			frame->mapping = mapping;
			/* What a frame pointer led to may be no code at all; what a rule led to is.
			 */
			s->head.end = !mapping && s->regs.by_fp ? PYPROF_END_NO_MAPPING
								: PYPROF_END_NOT_LOADED;
			s->unloaded = mapping || s->unknown || !s->regs.by_fp;
			return 1;
		}
		number = searched;
		found->pc = pc;
		found->pid = s->head.pid;
		found->epoch = s->epoch;
		found->mapping = mapping;
		found->rule = number;
	}
	frame->mapping = mapping;
	rule = bpf_map_lookup_elem(&rules, &number);
	if (!rule)
		return 1; /* cannot be: numbers are indices of the array */
	if (rule->cfa == PYPROF_CFA_NONE && rule->ra != PYPROF_RA_UNDEFINED)
		return !unwind_by_frame_pointer(&s->regs, &s->window, &s->head.end);
	return !unwind_by_rule(&s->regs, rule, &s->window, &s->head.end);
}

/* A turn of the walk, 1 at its end. Not static, so that the verifier looks at it once by itself and
 * not, path by path, in every turn of the loop. */
__attribute__((noinline)) int walk_turn(__u32 i)
{
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);

	return s ? walk_step(i, s) : 1;
}

static long walk_callback(__u32 i, void *context)
{
	__u64 done = walk_turn(i);

	(void)context;
	/* The verifier does not know what walk_turn returns; clang does, and would leave out the
	 * test
	 * ("At callback return the register R0 should have been in [0, 1]", seen on 6.18). */
	UNWIND_OPAQUE(done);
	return done ? 1 : 0;
}

static inline void walk_user(const struct bpf_perf_event_data *ctx, struct task_struct *task,
			     struct scratch *s)
{
	s->last.start = 1; /* an empty range */
	s->last.last = 0;
	s->unknown = 0;
	s->pid_be = bpf_htonl(s->head.pid);
	s->epoch = epoch;
	s->window.base = 1;
	s->regs.has_registers = PYPROF_KNOWN_ALL;
	s->regs.has_fp = 1;
	s->regs.exact = 1;
	s->regs.by_fp = 0;
	if (!read_user_regs(ctx, task, &s->regs)) {
		s->user[0].pc = s->regs.pc;
		s->user[0].mapping = find_mapping(s, s->regs.pc);
		s->user[0].flags = PYPROF_FRAME_EXACT;
		s->head.user_frames = 1;
		s->head.end = PYPROF_END_COMPAT;
		return;
	}
	/* What remains when no step ends the walk. */
	s->head.end = PYPROF_END_TOO_DEEP;
	if (config.has_loop) {
		bpf_loop(PYPROF_MAX_USER_FRAMES, walk_callback, NULL, 0);
		return;
	}
	/* The verifier walks a loop turn by turn and gives up after 8192 jumps. */
	for (__u32 i = 0; i < PYPROF_PLAIN_LOOP_FRAMES; i++)
		if (walk_turn(i))
			break;
}

/* Whether a task in the kernel has no user stack any more: it exits, or execs another program,
 * whose registers are still those of the old one. */
static inline int stack_is_gone(struct task_struct *task, const struct scratch *s)
{
	__u64 word;

	if (!task->mm)
		return 1;
	if (!bpf_core_field_exists(task->in_execve) || !BPF_CORE_READ_BITFIELD(task, in_execve))
		return 0;
	return bpf_probe_read_user(&word, sizeof(word), (const void *)s->regs.sp) != 0;
}

SEC("perf_event")
int sample(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct scratch *s;
	__u64 pid_tgid = bpf_get_current_pid_tgid(), flags;
	__u32 zero = 0, user_bytes, user_frames;
	long kernel_bytes = 0;

	if ((__u32)pid_tgid == 0) {
		count(PYPROF_COUNTER_IDLE);
		return 0;
	}
	count(PYPROF_COUNTER_TAKEN);
	s = bpf_map_lookup_elem(&scratches, &zero);
	if (!s) { /* cannot be: index 0 of an array */
		count(PYPROF_COUNTER_FAILED);
		return 0;
	}
	s->head.record = PYPROF_RECORD_SAMPLE;
	s->head.slice = 0;
	s->head.cpu = bpf_get_smp_processor_id();
	s->unloaded = 0;
	s->head.time = bpf_ktime_get_ns();
	s->head.start_time = task->group_leader->start_boottime;
	s->head.exec_id = task->group_leader->self_exec_id;
	s->head.exec_pages = task->mm ? task->mm->exec_vm : 0;
	s->head.pid = pid_tgid >> 32;
	s->head.tid = pid_tgid;
	s->head.user_frames = 0;
	s->head.end = PYPROF_END_COMPLETE;
	s->head.in_kernel = !is_user(ctx);
	s->head.is_kernel_thread = !!(task->flags & PF_KTHREAD);
	bpf_get_current_comm(s->head.thread_name, sizeof(s->head.thread_name));
	bpf_probe_read_kernel(s->head.process_name, sizeof(s->head.process_name),
			      task->group_leader->comm);

	if (!s->head.is_kernel_thread)
		walk_user(ctx, task, s);
	if (s->head.end != PYPROF_END_COMPLETE && s->head.in_kernel && stack_is_gone(task, s)) {
		/* What it does in the kernel is all there is. */
		s->head.user_frames = 0;
		s->head.end = PYPROF_END_COMPLETE;
		s->unloaded = 0;
	}
	if (s->unloaded)
		s->head.slice = send_slice(&s->regs, s->head.cpu, &s->slices);
	user_frames = s->head.user_frames;
	if (user_frames > PYPROF_MAX_USER_FRAMES) { /* cannot be; the verifier wants to see it */
		count(PYPROF_COUNTER_FAILED);
		return 0;
	}
	user_bytes = user_frames * sizeof(struct pyprof_frame);

	if (s->head.in_kernel) {
		kernel_bytes =
		    bpf_get_stack(ctx, (void *)s->user + user_bytes, sizeof(s->kernel), 0);
		if (kernel_bytes < 0 || kernel_bytes > (long)sizeof(s->kernel))
			kernel_bytes = 0;
	}
	s->head.kernel_frames = kernel_bytes / sizeof(__u64);

	flags = bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) >= config.wakeup_bytes
		    ? BPF_RB_FORCE_WAKEUP
		    : BPF_RB_NO_WAKEUP;
	if (bpf_ringbuf_output(&samples, s, sizeof(s->head) + user_bytes + kernel_bytes, flags))
		count(PYPROF_COUNTER_RING_FULL);
	return 0;
}
