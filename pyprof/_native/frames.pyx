# SPDX-License-Identifier: Apache-2.0
"""From the addresses of a sample to a counted stack: what lies where, and the rest of a walk that the kernel side left.

A frame comes with the number of the mapping that the kernel side found. It is taken if that mapping was not
retired by the sample's time; else, and for processes that are not in the kernel's trie, the address is looked up
in the process table. Caller frames are reported one byte before the return address, which may be the first byte
of another function after a call that never returns.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyprof._native.aggregate cimport (
    KIND_KERNEL,
    KIND_NATIVE,
    KIND_UNKNOWN,
    FrameRow,
    aggregate_stack,
)
from pyprof._native.arena cimport arena_rule, arena_use, arena_want, pyprof_rule
from pyprof._native.drain cimport (
    Drain,
    unwind_by_frame_pointer,
    unwind_by_rule,
    unwind_lookup_pc,
    unwind_regs,
    unwind_slice,
)
from pyprof._native.executables cimport ANONYMOUS, NO_EXECUTABLE, executables_count
from pyprof._native.mappings cimport Entry, Trie
from pyprof._native.process_table cimport table_ask
from pyprof._native.ranges cimport Range, ranges_find
from pyprof._native.records cimport (
    PYPROF_CFA_NONE,
    PYPROF_END_COMPLETE,
    PYPROF_END_KERNEL_TOO_DEEP,
    PYPROF_END_NO_MAPPING,
    PYPROF_END_NOT_LOADED,
    PYPROF_END_PROCESS_GONE,
    PYPROF_END_SLICE_SHORT,
    PYPROF_END_STALE,
    PYPROF_END_TOO_DEEP,
    PYPROF_END_UNREADABLE,
    PYPROF_FRAME_EXACT,
    PYPROF_MAX_KERNEL_FRAMES,
    PYPROF_MAX_USER_FRAMES,
    PYPROF_RA_UNDEFINED,
    PYPROF_SLICE_BYTES,
    pyprof_frame,
    pyprof_sample,
    pyprof_slice,
)
from pyprof._native.rules cimport PYPROF_RULE_NONE

cdef uint64_t SECOND = 1000000000


cdef inline void set_frame(FrameRow *row, uint32_t kind, uint32_t executable, uint64_t address) noexcept nogil:
    row.kind = kind
    row.executable = executable
    row.address = address


cdef void set_user_frame(
    Drain *d, FrameRow *row, uint32_t executable, uint64_t address, uint64_t time
) noexcept nogil:
    if executable == ANONYMOUS or executable == NO_EXECUTABLE:
        set_frame(row, KIND_UNKNOWN, executable, 0)
    else:
        set_frame(row, KIND_NATIVE, executable, address)
        arena_use(d.arena, executable, time)


cdef const pyprof_rule *rule_of(Drain *d, uint32_t executable, uint64_t offset) noexcept nogil:
    """By which rule a file's code is walked; NULL where its rows are not loaded."""
    if executable <= ANONYMOUS:
        return &d.arena.rules.rules[PYPROF_RULE_NONE]
    return arena_rule(d.arena, executable, offset)


cdef bint user_frame(
    Drain *d, const Process *process, const pyprof_sample *sample, const pyprof_frame *frame, FrameRow *row,
    bint *stale
) noexcept nogil:
    """Sets the row of a user frame; False where nothing executable is mapped there. stale: whether the kernel
    side took another file for it, and went on by a rule that is not this one's."""
    cdef Trie *trie = d.table.trie
    cdef const Entry *entry = NULL
    cdef const Range *range
    cdef const pyprof_rule *rule
    cdef uint64_t address = frame.pc if frame.flags & PYPROF_FRAME_EXACT else frame.pc - 1
    if frame.mapping and frame.mapping <= trie.entry_count:
        entry = &trie.entries[frame.mapping]
        if (
            entry.pid == sample.pid and entry.start <= address <= entry.last
            and (entry.retired_at == 0 or sample.time < entry.retired_at)
        ):
            set_user_frame(d, row, entry.executable, address - entry.bias, sample.time)
            return True
    range = ranges_find(process.ranges, address)
    # What was mapped only after the sample was taken is not what ran.
    if range == NULL or range.since > sample.time:
        return False
    if entry != NULL and (entry.executable != range.executable or entry.bias != range.bias):
        rule = rule_of(d, range.executable, address - range.bias)
        if rule == NULL:
            arena_want(d.arena, range.executable)
        # Rules are kept once, so equal ones are one.
        stale[0] = rule == NULL or rule != rule_of(d, entry.executable, address - entry.bias)
    set_user_frame(d, row, range.executable, address - range.bias, sample.time)
    return True


cdef bint walk_on(
    Drain *d, const Process *process, const pyprof_sample *sample, const pyprof_slice *slice,
    uint32_t *count, uint8_t *end, bint may_wait
) noexcept nogil:
    """Goes on, from the copy of the stack, with a walk that the kernel side had to leave; False where that
    has to wait for unwind rows."""
    cdef unwind_regs regs
    cdef unwind_slice memory
    cdef const Range *range
    cdef const pyprof_rule *rule
    cdef uint32_t depth = sample.user_frames
    cdef uint64_t pc, failed = 0
    cdef bint stepped
    memory.data = <const uint8_t *>slice + sizeof(pyprof_slice)
    memory.base = slice.base
    memory.size = slice.size
    memory.holes = slice.holes
    memory.failed = &failed
    regs.pc, regs.sp, regs.fp = slice.pc, slice.sp, slice.fp
    memcpy(regs.registers, slice.registers, sizeof(regs.registers))
    regs.has_registers, regs.has_fp, regs.exact = slice.has_registers, slice.has_fp, slice.exact
    regs.by_fp = 0
    range = ranges_find(process.ranges, unwind_lookup_pc(&regs))
    while True:
        if range == NULL or range.since > sample.time:
            end[0] = PYPROF_END_NO_MAPPING
            return True
        pc = unwind_lookup_pc(&regs)
        end[0] = PYPROF_END_NOT_LOADED
        rule = rule_of(d, range.executable, pc - range.bias)
        if rule == NULL:
            arena_want(d.arena, range.executable)
            return not may_wait
        if rule.cfa == PYPROF_CFA_NONE and rule.ra != PYPROF_RA_UNDEFINED:
            stepped = unwind_by_frame_pointer(&regs, &memory, end)
        else:
            stepped = unwind_by_rule(&regs, rule, &memory, end)
        if not stepped:
            if end[0] == PYPROF_END_UNREADABLE and failed >= (slice.base & ~<uint64_t>4095) + PYPROF_SLICE_BYTES:
                end[0] = PYPROF_END_SLICE_SHORT
            return True
        depth += 1
        if depth > PYPROF_MAX_USER_FRAMES:
            end[0] = PYPROF_END_TOO_DEEP
            return True
        pc = unwind_lookup_pc(&regs)
        range = ranges_find(process.ranges, pc)
        if range != NULL and range.since <= sample.time:
            set_user_frame(d, &d.frames[count[0]], range.executable, pc - range.bias, sample.time)
            count[0] += 1


cdef int64_t stack_of(
    Drain *d, Process *process, const pyprof_sample *sample, const pyprof_slice *slice, uint8_t *end,
    bint may_wait
) noexcept nogil:
    """Number of a sample's stack, kernel frames first; -1 without memory, -2 where it has to wait for
    unwind rows."""
    cdef const pyprof_frame *user = <const pyprof_frame *>(<const uint8_t *>sample + sizeof(pyprof_sample))
    cdef const uint64_t *kernel = <const uint64_t *>(user + sample.user_frames)
    cdef uint32_t count = 0, i, known
    cdef int64_t stack
    cdef bint found, stale = False
    for i in range(sample.kernel_frames):
        set_frame(&d.frames[count], KIND_KERNEL, NO_EXECUTABLE, kernel[i] - (i > 0))
        count += 1
    for i in range(sample.user_frames):
        found = user_frame(d, process, sample, &user[i], &d.frames[count], &stale)
        if not found and i == 0 and count and process.known:
            # In the middle of an exec: the registers are the old program's, whose memory is gone.
            end[0] = PYPROF_END_NO_MAPPING
            if process.ranges == NULL and not process.gone:
                end[0] = PYPROF_END_COMPLETE
            slice = NULL
            break
        if not found:
            if not process.exited_at and process.known and sample.time > process.rescan_after:
                # Something is mapped that no event told, or the address is no address at all.
                process.rescan_after = sample.time + 10 * SECOND
                table_ask(d.table, process)
            slice = NULL
            end[0] = PYPROF_END_NO_MAPPING
            if i == 0:
                set_frame(&d.frames[count], KIND_UNKNOWN, NO_EXECUTABLE, 0)
                count += 1
            break
        count += 1
        if stale and (slice == NULL or i + 1 < sample.user_frames):
            # The frame is right, by its address; where its caller is, the rows of another file said.
            slice = NULL
            end[0] = PYPROF_END_STALE
            break
    if slice != NULL:
        if not walk_on(d, process, sample, slice, &count, end, may_wait):
            return -2
        d.walked += 1
    if process.gone and end[0] != PYPROF_END_COMPLETE:
        end[0] = PYPROF_END_PROCESS_GONE
    if sample.kernel_frames == PYPROF_MAX_KERNEL_FRAMES:
        end[0] = PYPROF_END_KERNEL_TOO_DEEP
    known = d.aggregate.frame_index.used
    stack = aggregate_stack(d.aggregate, d.frames, count)
    for i in range(known, d.aggregate.frame_index.used):
        executables_count(&d.table.executables, d.aggregate.frames[i].executable)
    return stack
