# SPDX-License-Identifier: Apache-2.0
"""The samples of a profile, process by process, merged as far as what is reported of them is equal.

Frames become locations by the caller's table. Several frames may be one location, so stacks are told apart by
their locations, and samples by process, stack and the list of attributes that the caller gives their thread.
"""

cimport cython
from cpython cimport array
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp
from libc.string cimport memcpy

import os
from array import array as make_array

from pyprof._native.hashing cimport pyprof_hash_bytes
from pyprof._native.hashing cimport pyprof_hash_two
from pyprof._native.index cimport Index
from pyprof._native.index cimport index_add
from pyprof._native.index cimport index_deinit
from pyprof._native.index cimport index_init
from pyprof._native.index cimport index_reserve
from pyprof._native.index cimport slot_id

cdef array.array U32 = make_array("I")
cdef array.array U64 = make_array("Q")
cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")

cdef enum:
    NONE = 0xffffffff
    NO_MEMORY = -1
    NO_LOCATION = -2


cdef struct Key:
    uint32_t process
    uint32_t thread
    uint32_t stack
    uint32_t row


cdef int compare_keys(const void *one, const void *other) noexcept nogil:
    cdef const Key *a = <const Key *>one
    cdef const Key *b = <const Key *>other
    if a.process != b.process:
        return -1 if a.process < b.process else 1
    if a.thread != b.thread:
        return -1 if a.thread < b.thread else 1
    if a.stack != b.stack:
        return -1 if a.stack < b.stack else 1
    return -1 if a.row < b.row else <int>(a.row > b.row)


cdef int compare_times(const void *one, const void *other) noexcept nogil:
    cdef uint64_t a = (<const uint64_t *>one)[0]
    cdef uint64_t b = (<const uint64_t *>other)[0]
    return -1 if a < b else <int>(a > b)


cdef inline uint32_t *u32(array.array items) noexcept nogil:
    return <uint32_t *>items.data.as_voidptr


cdef inline uint64_t *u64(array.array items) noexcept nogil:
    return <uint64_t *>items.data.as_voidptr


cdef array.array zeros(array.array like, uint64_t count):
    return array.clone(like, <Py_ssize_t>count, zero=True)


@cython.final
cdef class Merged:
    """What a part of SampleRows comes to. Numbers of stacks begin at 1: 0 is the empty one.

    Attributes, all array("I") but where stated:
        locations, stack_starts: stack i has locations[stack_starts[i - 1]:stack_starts[i]], leaf first.
        process, stack, attributes: of each sample the process, the stack, and the number of its list of attributes;
            samples of a process lie side by side.
        values: array("Q") of how many there are of each, 0 where times say so.
        times, time_starts: sample i was taken at times[time_starts[i]:time_starts[i + 1]], an array("Q"), ascending.
    """

    cdef readonly array.array locations
    cdef readonly array.array stack_starts
    cdef readonly array.array process
    cdef readonly array.array stack
    cdef readonly array.array attributes
    cdef readonly array.array values
    cdef readonly array.array times
    cdef readonly array.array time_starts
    cdef Index stack_index
    cdef Index sample_index

    def __cinit__(self, uint64_t rows, uint64_t frames):
        self.locations = zeros(U32, frames)
        self.stack_starts = zeros(U32, rows + 1)
        self.process = zeros(U32, rows)
        self.stack = zeros(U32, rows)
        self.attributes = zeros(U32, rows)
        self.values = zeros(U64, rows)
        self.time_starts = zeros(U32, rows + 1)
        if index_init(&self.stack_index, 64) < 0 or index_init(&self.sample_index, 64) < 0:
            raise MemoryError

    def __dealloc__(self):
        index_deinit(&self.stack_index)
        index_deinit(&self.sample_index)

    cdef int64_t add_stack(
        self, const uint32_t *frames, uint32_t length, const uint32_t *locations, uint64_t location_count
    ) noexcept nogil:
        """Number of a stack, NO_MEMORY, or NO_LOCATION where it has a frame without one."""
        cdef Index *index = &self.stack_index
        cdef uint32_t *starts = u32(self.stack_starts)
        cdef uint32_t *mapped = u32(self.locations) + starts[index.used]
        cdef uint32_t i, tag, at, id, frame
        if length == 0:
            return 0
        for i in range(length):
            frame = frames[i]
            if frame >= location_count:
                return NO_LOCATION
            mapped[i] = locations[frame]
        tag = <uint32_t>(pyprof_hash_bytes(mapped, <uint64_t>length * sizeof(uint32_t), SEED) >> 32)
        at = tag & index.mask
        while index.slots[at]:
            id = slot_id(index.slots[at])
            if (
                <uint32_t>(index.slots[at] >> 32) == tag
                and starts[id + 1] - starts[id] == length
                and not memcmp(u32(self.locations) + starts[id], mapped, length * sizeof(uint32_t))
            ):
                return <int64_t>id + 1
            at = (at + 1) & index.mask
        if index_reserve(index) < 0:
            return NO_MEMORY
        starts[index.used + 1] = starts[index.used] + length
        index_add(index, tag, index.used)
        return index.used

    cdef int64_t add_sample(self, uint32_t process, uint32_t stack, uint32_t attributes) noexcept nogil:
        """Number of a sample, or NO_MEMORY."""
        cdef Index *index = &self.sample_index
        cdef uint32_t tag = <uint32_t>(
            pyprof_hash_two((<uint64_t>process << 32) | stack, attributes, SEED) >> 32
        )
        cdef uint32_t at = tag & index.mask, id
        while index.slots[at]:
            id = slot_id(index.slots[at])
            if (
                u32(self.process)[id] == process
                and u32(self.stack)[id] == stack
                and u32(self.attributes)[id] == attributes
            ):
                return id
            at = (at + 1) & index.mask
        if index_reserve(index) < 0:
            return NO_MEMORY
        id = index.used
        u32(self.process)[id] = process
        u32(self.stack)[id] = stack
        u32(self.attributes)[id] = attributes
        index_add(index, tag, id)
        return id

    cdef int cut(self) except -1:
        """Gives back the room that was not needed."""
        cdef uint32_t stacks = self.stack_index.used, samples = self.sample_index.used
        array.resize(self.locations, u32(self.stack_starts)[stacks])
        array.resize(self.stack_starts, stacks + 1)
        array.resize(self.time_starts, samples + 1)
        for each in (self.process, self.stack, self.attributes, self.values):
            array.resize(each, samples)
        return 0


@cython.final
cdef class SampleRows:
    """Samples of a profile in the order of process, thread and stack: its rows are counted in this order here.

    A part of them is [first, end), of whose times only those in [first_time, end_time) count.
    """

    cdef uint64_t count
    cdef array.array row_times  # the times of row i are number row_times[i] to row_times[i + 1]
    cdef array.array keys  # four words each
    cdef array.array counts
    cdef array.array times
    cdef array.array stack_starts
    cdef const uint32_t[::1] frames  # the caller's, and looked at anew each time

    def __cinit__(self, const uint32_t[::1] process not None, const uint32_t[::1] thread not None,
                  const uint32_t[::1] stack not None, const uint64_t[::1] count not None,
                  const uint32_t[::1] starts not None, const uint32_t[::1] frames not None,
                  const uint64_t[::1] times not None, const uint32_t[::1] time_rows not None):
        """Columns as those of a Profile.

        Raises:
            ValueError: they differ in length, or something refers to what is not there.
        """
        cdef uint64_t i, rows = <uint64_t>process.shape[0], stacks = <uint64_t>starts.shape[0]
        cdef uint32_t before = 0
        cdef bint sound
        cdef Key *keys
        sound = <uint64_t>thread.shape[0] == rows and <uint64_t>stack.shape[0] == rows and rows < NONE
        sound = sound and <uint64_t>count.shape[0] == rows and stacks > 0 and <uint64_t>frames.shape[0] < NONE
        sound = sound and times.shape[0] == time_rows.shape[0] and <uint64_t>times.shape[0] < NONE
        if not sound:
            raise ValueError("rows, stacks and times do not fit together")
        self.count = rows
        self.frames = frames
        self.stack_starts = zeros(U32, stacks)
        self.keys = zeros(U32, 4 * rows)
        self.counts = zeros(U64, rows)
        # Checked is what was copied, which nobody else can change.
        for i in range(stacks):
            u32(self.stack_starts)[i] = starts[i]
            sound = sound and before <= u32(self.stack_starts)[i]
            before = u32(self.stack_starts)[i]
        sound = sound and before <= <uint64_t>frames.shape[0]
        keys = self.key()
        for i in range(rows):
            keys[i].process = process[i]
            keys[i].thread = thread[i]
            keys[i].stack = stack[i]
            keys[i].row = <uint32_t>i
            sound = sound and keys[i].stack < stacks - 1
        if not sound:
            raise ValueError("rows, stacks and times do not fit together")
        with nogil:
            qsort(keys, rows, sizeof(Key), compare_keys)
        for i in range(rows):
            u64(self.counts)[i] = count[keys[i].row]
        self.place_times(times, time_rows)

    cdef Key *key(self) noexcept nogil:
        return <Key *>u32(self.keys)

    cdef int place_times(self, const uint64_t[::1] times, const uint32_t[::1] time_rows) except -1:
        """Puts the times of a row side by side."""
        cdef array.array at = zeros(U32, self.count)  # by row of the profile: where its next time goes
        cdef uint32_t *next_at = u32(at)
        cdef uint32_t *starts
        cdef uint64_t *placed
        cdef uint64_t i
        cdef uint32_t row, many
        self.row_times = zeros(U32, self.count + 1)
        starts = u32(self.row_times)
        for i in range(<uint64_t>time_rows.shape[0]):
            if time_rows[i] >= self.count:
                raise ValueError("rows, stacks and times do not fit together")
            next_at[time_rows[i]] += 1
        for i in range(self.count):
            row = self.key()[i].row
            many = next_at[row] if next_at[row] == u64(self.counts)[i] else 0
            next_at[row] = starts[i] if many else NONE
            starts[i + 1] = starts[i] + many
        self.times = zeros(U64, starts[self.count])
        placed = u64(self.times)
        for i in range(<uint64_t>time_rows.shape[0]):
            row = time_rows[i]
            if next_at[row] != NONE:
                placed[next_at[row]] = times[i]
                next_at[row] += 1
        return 0

    def __len__(self):
        return self.count

    @property
    def time_starts(self):
        """The times of row i are number time_starts[i] to time_starts[i + 1], none where they are not as many as its
        samples. A copy that cannot be written."""
        return memoryview(self.row_times.tobytes()).cast("I")

    cdef int check(self, uint64_t first, uint64_t end) except -1:
        if not first <= end <= self.count:
            raise IndexError("there are no such rows")
        return 0

    cdef uint64_t samples_of(
        self, uint64_t row, uint64_t first_time, uint64_t end_time, uint32_t *first, uint32_t *end
    ) noexcept nogil:
        """Samples of a row in a part; first, end: the times of these, none where there are none."""
        cdef const uint32_t *starts = &u32(self.row_times)[row]
        if starts[0] == starts[1]:
            first[0] = end[0] = starts[0]
            return u64(self.counts)[row]
        first[0] = <uint32_t>min(max(first_time, starts[0]), starts[1])
        end[0] = <uint32_t>min(max(end_time, first[0]), starts[1])
        return end[0] - first[0]

    def samples(self, uint64_t first, uint64_t end, uint64_t first_time, uint64_t end_time):
        """How many samples a part has."""
        cdef uint64_t row, total = 0
        cdef uint32_t a, b
        self.check(first, end)
        for row in range(first, end):
            total += self.samples_of(row, first_time, end_time, &a, &b)
        return total

    def used_frames(self, uint64_t first, uint64_t end, uint64_t frames):
        """array("I") of the frames that rows have, each once, in the order in which they are met.

        Args:
            frames: how many there are.

        Raises:
            IndexError: there are no such rows, or a row has another frame.
        """
        cdef array.array found
        cdef bytearray stack_met, frame_met
        cdef uint8_t *known_stack
        cdef uint8_t *known_frame
        cdef uint64_t row, i, used = 0
        cdef uint32_t *starts = u32(self.stack_starts)
        cdef uint32_t stack, frame
        self.check(first, end)
        stack_met, frame_met = bytearray(len(self.stack_starts)), bytearray(frames)
        known_stack, known_frame = stack_met, frame_met
        found = zeros(U32, min(frames, <uint64_t>self.frames.shape[0]))
        for row in range(first, end):
            stack = self.key()[row].stack
            if known_stack[stack]:
                continue
            known_stack[stack] = 1
            for i in range(starts[stack], starts[stack + 1]):
                frame = self.frames[i]
                if frame >= frames:
                    raise IndexError("there is no such frame")
                if not known_frame[frame]:
                    known_frame[frame] = 1
                    u32(found)[used] = frame
                    used += 1
        array.resize(found, <Py_ssize_t>used)
        return found

    def used_threads(self, uint64_t first, uint64_t end):
        """Set of the threads that rows have."""
        cdef uint64_t row
        self.check(first, end)
        found = set()
        for row in range(first, end):
            if row == first or self.key()[row].thread != self.key()[row - 1].thread:
                found.add(self.key()[row].thread)
        return found

    def merge(self, uint64_t first, uint64_t end, uint64_t first_time, uint64_t end_time,
              const uint32_t[::1] locations not None, const uint32_t[::1] attributes not None):
        """Merges the rows of a part.

        Args:
            locations: by frame.
            attributes: by thread, the number of its list of attributes.

        Raises:
            IndexError: there are no such rows, or a frame or thread is not in these.
        """
        cdef Merged merged
        cdef array.array known, of_row
        cdef Key *key = self.key()
        cdef uint32_t *starts = u32(self.stack_starts)
        cdef const uint32_t *frames = NULL
        cdef const uint32_t *by_frame = NULL
        cdef uint64_t row
        cdef int64_t id = 0
        cdef uint32_t a, b, stack
        self.check(first, end)
        for row in range(first, end):
            if key[row].thread >= <uint64_t>attributes.shape[0]:
                raise IndexError("a thread has no list of attributes")
        if self.frames.shape[0]:
            frames = &self.frames[0]
        if locations.shape[0]:
            by_frame = &locations[0]
        known = zeros(U32, <uint64_t>len(self.stack_starts))  # by stack: its number there, and one
        of_row = zeros(U32, end - first)
        merged = Merged(end - first, <uint64_t>self.frames.shape[0])
        with nogil:
            for row in range(first, end):
                stack = key[row].stack
                if u32(known)[stack] == 0:
                    id = merged.add_stack(
                        frames + starts[stack], starts[stack + 1] - starts[stack],
                        by_frame, <uint64_t>locations.shape[0],
                    )
                    if id < 0:
                        break
                    u32(known)[stack] = <uint32_t>id + 1
                id = merged.add_sample(
                    key[row].process, u32(known)[stack] - 1, attributes[key[row].thread]
                )
                if id < 0:
                    break
                u32(of_row)[row - first] = <uint32_t>id
                u64(merged.values)[id] += self.samples_of(row, first_time, end_time, &a, &b)
                u32(merged.time_starts)[id + 1] += b - a
        if id == NO_LOCATION:
            raise IndexError("a frame has no location")
        if id < 0:
            raise MemoryError
        self.gather_times(merged, first, end, first_time, end_time, u32(of_row))
        merged.cut()
        return merged

    cdef int gather_times(self, Merged merged, uint64_t first, uint64_t end, uint64_t first_time, uint64_t end_time,
                          const uint32_t *of_row) except -1:
        """Gives each sample the times of its rows, where all of them have some."""
        cdef uint64_t samples = merged.sample_index.used
        cdef array.array at = zeros(U32, samples)  # where the next time of a sample goes
        cdef uint32_t *next_at = u32(at)
        cdef uint32_t *starts = u32(merged.time_starts)
        cdef uint64_t *values = u64(merged.values)
        cdef uint64_t *times
        cdef uint64_t row, i
        cdef uint32_t a, b
        for i in range(samples):
            if starts[i + 1] == values[i]:
                values[i] = 0
            else:
                starts[i + 1] = 0
            next_at[i] = starts[i]
            starts[i + 1] += starts[i]
        merged.times = zeros(U64, starts[samples])
        times = u64(merged.times)
        with nogil:
            for row in range(first, end):
                i = of_row[row - first]
                self.samples_of(row, first_time, end_time, &a, &b)
                if starts[i] != starts[i + 1]:
                    memcpy(&times[next_at[i]], &u64(self.times)[a], (b - a) * sizeof(uint64_t))
                    next_at[i] += b - a
            for i in range(samples):
                qsort(&times[starts[i]], starts[i + 1] - starts[i], sizeof(uint64_t), compare_times)
        return 0
