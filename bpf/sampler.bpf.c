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

#include "pyprof_abi.h"

static inline int unwind_read(void *dst, __u32 size, __u64 address, const void *memory)
{
	(void)memory;
	return bpf_probe_read_user(dst, size, (const void *)address);
}

#include "unwind.h"

/* GPL: bpf_get_stack and the BTF helpers are for GPL programs only. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

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

/* A record under construction: 17.5 KiB a CPU. */
struct scratch {
	struct pyprof_sample head;
	struct pyprof_frame user[PYPROF_MAX_USER_FRAMES];
	__u64 kernel[PYPROF_MAX_KERNEL_FRAMES];
	/* State of the walk, not sent. */
	struct unwind_regs regs;
	struct pyprof_mapping_value last;
	__u32 pid_be;
	__u8 unknown; /* the process is not in exec_mappings */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		(*value)++;
}

static inline __u32 mapping_of(struct scratch *s, __u64 pc)
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

/* Appends the frame in s->regs and steps to its caller; 1 ends the walk. */
static inline long walk_step(__u32 i, struct scratch *s)
{
	struct pyprof_frame *frame;
	__u32 mapping;

	if (i >= PYPROF_MAX_USER_FRAMES)
		return 1;
	frame = &s->user[i];
	mapping = mapping_of(s, s->regs.pc);
	/* Later frames may still be in mappings that user space knows: it has the last word. */
	if (!mapping && i == 0)
		s->unknown = 1;
	frame->pc = s->regs.pc;
	frame->mapping = mapping;
	frame->reserved = 0;
	s->head.user_frames = i + 1;
	return !unwind_by_frame_pointer(&s->regs, NULL, &s->head.end);
}

static long walk_callback(__u32 i, void *context)
{
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);

	(void)context;
	return s ? walk_step(i, s) : 1;
}

#if defined(__TARGET_ARCH_x86)
static inline int is_user(const struct bpf_perf_event_data *ctx)
{
	return ctx->regs.cs & 3;
}

/* False for 32-bit code, whose frames have another layout. */
static inline int read_user_regs(const struct bpf_perf_event_data *ctx, struct task_struct *task,
				 struct unwind_regs *regs)
{
	/* volatile: clang else merges the loads of both branches into one, which verifiers refuse
	 * ("same insn cannot be used with different pointers", seen on 6.18). */
	const volatile struct pt_regs *saved;

	if (is_user(ctx)) {
		*regs = (struct unwind_regs){ctx->regs.rip, ctx->regs.rsp, ctx->regs.rbp};
		return ctx->regs.cs != 0x23; /* __USER32_CS */
	}
	saved = (const volatile struct pt_regs *)bpf_task_pt_regs(task);
	*regs = (struct unwind_regs){saved->rip, saved->rsp, saved->rbp};
	return saved->cs != 0x23;
}
#elif defined(__TARGET_ARCH_arm64)
static inline int is_user(const struct bpf_perf_event_data *ctx)
{
	return (ctx->regs.pstate & 0xf) == 0; /* PSR_MODE_EL0t */
}

static inline int read_user_regs(const struct bpf_perf_event_data *ctx, struct task_struct *task,
				 struct unwind_regs *regs)
{
	const volatile struct user_pt_regs *saved;

	if (is_user(ctx)) {
		*regs = (struct unwind_regs){ctx->regs.pc, ctx->regs.sp, ctx->regs.regs[29]};
		return !(ctx->regs.pstate & 0x10); /* PSR_MODE32_BIT */
	}
	saved = (const volatile struct user_pt_regs *)bpf_task_pt_regs(task);
	*regs = (struct unwind_regs){saved->pc, saved->sp, saved->regs[29]};
	return !(saved->pstate & 0x10);
}
#else
#error "unknown architecture"
#endif

static inline void walk_user(const struct bpf_perf_event_data *ctx, struct task_struct *task,
			     struct scratch *s)
{
	s->last.start = 1; /* an empty range */
	s->last.last = 0;
	s->unknown = 0;
	s->pid_be = bpf_htonl(s->head.pid);
	if (!read_user_regs(ctx, task, &s->regs)) {
		s->user[0].pc = s->regs.pc;
		s->user[0].mapping = mapping_of(s, s->regs.pc);
		s->user[0].reserved = 0;
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
	/* The verifier walks a loop turn by turn and gives up after 8192 jumps (some 740 turns). */
	for (__u32 i = 0; i < 512; i++)
		if (walk_step(i, s))
			break;
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
	if (!s)
		return 0; /* cannot be: index 0 of an array */

	s->head.time = bpf_ktime_get_ns();
	s->head.start_time = task->group_leader->start_boottime;
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
	user_frames = s->head.user_frames;
	if (user_frames > PYPROF_MAX_USER_FRAMES)
		return 0; /* cannot be; the verifier wants to see it */
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
