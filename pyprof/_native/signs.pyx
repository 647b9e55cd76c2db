# SPDX-License-Identifier: Apache-2.0
"""Signs in samples that a process is not what events say.

The kernel tells of what is mapped, not of what is unmapped or moved by mremap(), and its records may be
lost. Two of its own counts come with each sample:

- of execs: a program other than the one that is known is noticed where pid and start time are the same;
- of executable pages: what was unmapped or moved away leaves fewer of them than there are in the ranges.
  Only the surplus matters: what the kernel counts otherwise than events tell stays the same.

A third sign is code that runs where nothing is known to be mapped. Samples of system calls are not looked at:
they may be in the midst of what changes these.

Where there are too few pages, a range is left that should have gone. As long as nothing else is moved there,
which no event tells either, it does no harm. So samples with a frame in a range that is small enough to be
that one wait until /proc was read, and so do those that run nowhere; what the kernel side has of the process
is withdrawn as of the first one. They are resolved by what was read and is just what events had told; what
only the reading tells holds from its time on.
"""

import os

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyprof._native.ranges cimport Range, Ranges, range_same, ranges_find
from pyprof._native.records cimport PYPROF_FRAME_EXACT, pyprof_frame, pyprof_sample

cdef uint64_t PAGE_BITS = os.sysconf("SC_PAGE_SIZE").bit_length() - 1
cdef uint64_t KERNEL_HALF = 1 << 63
cdef uint8_t IN_VAIN = 3


cdef void signs_mapped(Signs *signs, uint64_t time, bint writable) noexcept nogil:
    """An event told of a mapping; those that can be written the kernel does not count."""
    signs.counted = 0
    signs.changed_at = max(signs.changed_at, time)
    signs.in_vain = 0
    if writable:
        signs.learn = 1


cdef void signs_scanned(
    Signs *signs, const Ranges *ranges, Ranges *fresh, uint64_t time, uint64_t uncounted
) noexcept nogil:
    """The maps were read: says since when ranges are valid that take the place of those in doubt."""
    cdef const Range *old
    cdef uint32_t i, kept = 0
    for i in range(fresh.count if fresh != NULL else 0):
        old = ranges_find(ranges, fresh.items[i].start)
        if old != NULL and range_same(old, &fresh.items[i]):
            kept += 1
            fresh.items[i].untold = old.untold
            # What no event has told of may have gone and come again.
            fresh.items[i].since = time if signs.doubted and old.untold else old.since
        elif ranges != NULL:
            fresh.items[i].untold = 1
            fresh.items[i].since = time
    # The kernel may count in a way that we do not know of.
    if signs.in_vain < IN_VAIN and ranges != NULL and fresh != NULL and kept == fresh.count == ranges.count:
        signs.in_vain += 1
    else:
        signs.in_vain = 0
    signs.learn = signs.in_vain == IN_VAIN
    signs.surplus = -<int64_t>uncounted
    signs.doubted = 0
    signs.counted = 0
    signs.changed_at = max(signs.changed_at, time)


cdef bint tells(const pyprof_sample *sample) noexcept nogil:
    return sample.user_frames > 0 and (<const pyprof_frame *>(sample + 1)).flags & PYPROF_FRAME_EXACT != 0


cdef int32_t signs_execs(Signs *signs, const pyprof_sample *sample) noexcept nogil:
    """How many execs after the program that is known the sampled one came, where that can be told."""
    cdef int32_t later
    if not tells(sample):
        return 0
    later = <int32_t>(sample.exec_id - signs.exec_id) if signs.has_exec_id else 0
    if later >= 0:
        signs.exec_id = sample.exec_id
        signs.has_exec_id = 1
    return later


cdef inline int64_t pages_of(const Range *range) noexcept nogil:
    return <int64_t>((range.last - range.start) >> PAGE_BITS) + 1


cdef bint is_doubtful(const Ranges *ranges, const pyprof_sample *sample, int64_t missing) noexcept nogil:
    """Whether a sample runs nowhere, or has a frame in a range that may be what is missing."""
    cdef const pyprof_frame *frames = <const pyprof_frame *>(sample + 1)
    cdef const Range *found
    cdef uint32_t i
    cdef bint is_one = False
    if missing > 0 and ranges != NULL:
        for i in range(ranges.count):
            is_one |= pages_of(&ranges.items[i]) == missing
    for i in range(sample.user_frames):
        if missing <= 0 and (i > 0 or frames[i].mapping):
            return False
        found = ranges_find(ranges, frames[i].pc)
        # Where a range is just as large as what is missing, that is it; else it may be several, or a piece.
        if found != NULL and (pages_of(found) == missing if is_one else pages_of(found) < missing):
            return True
        # [vsyscall] is no mapping of a process.
        if found == NULL and i == 0 and frames[i].pc < KERNEL_HALF:
            return True
    return False


cdef Doubt signs_doubt(Signs *signs, const Ranges *ranges, const pyprof_sample *sample) noexcept nogil:
    """Whether a sample shows that what its process has mapped are not these ranges."""
    cdef uint32_t i
    cdef int64_t surplus
    if not tells(sample) or sample.time <= signs.changed_at:
        return NO_DOUBT
    if not signs.counted:
        signs.counted = 1
        signs.pages = 0
        if ranges != NULL:
            for i in range(ranges.count):
                signs.pages += pages_of(&ranges.items[i])
    surplus = <int64_t>sample.exec_pages - signs.pages
    if signs.learn or not sample.exec_pages:
        signs.learn = 0
        signs.surplus = surplus
    if is_doubtful(ranges, sample, signs.surplus - surplus):
        signs.doubted = 1
        return SAMPLE_IN_DOUBT
    return NO_DOUBT if surplus == signs.surplus else MAPS_IN_DOUBT
