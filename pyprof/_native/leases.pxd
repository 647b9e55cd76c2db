# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of numbered things, and a timing wheel that says which have ended.

A thing's deadline is the earlier one of its idle deadline, which each use moves on, and its absolute one. The
wheel holds its things by the time at which to look at them next: 11 levels of 64 slots, each level's slots 64
times as wide as those of the level below, so that all times of 64 bits have a place. A use only writes the new
deadline. When its slot comes, a thing that lives on takes a new place; so a use costs nothing in the wheel, no
thing hides another, and each is looked at no more than once a level and a passed deadline.

Time is any unit that does not go backwards: a deadline of 0 means never.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t


cdef enum:
    WHEEL_LEVELS = 11
    WHEEL_SLOTS = 64


cdef struct Lease:
    uint64_t deadline  # the thing has ended from this time on; 0: never, and then the next two are 0 as well
    uint64_t idle  # added to the time of each use; 0: no idle lifetime
    uint64_t latest  # the absolute deadline; 0: none
    uint64_t weight  # of the owner: what its thing weighs, less 1
    uint32_t next
    uint32_t prev
    uint16_t place  # level and slot in the wheel, plus 1; 0: not in the wheel


cdef struct Wheel:
    uint64_t reached  # all slots before this time are empty
    uint64_t occupied[WHEEL_LEVELS]  # bit i: slot i holds something
    uint32_t first[WHEEL_LEVELS * WHEEL_SLOTS]  # 0: none; so a thing's number is never 0
    uint32_t count


cdef void wheel_clear(Wheel *wheel) noexcept nogil
cdef void wheel_link(Wheel *wheel, Lease *leases, uint32_t id) noexcept nogil
cdef void wheel_unlink(Wheel *wheel, Lease *leases, uint32_t id) noexcept nogil
cdef uint32_t wheel_ended(Wheel *wheel, Lease *leases, uint64_t now, uint64_t *budget) noexcept nogil


cdef inline uint64_t time_after(uint64_t now, uint64_t lifetime) noexcept nogil:
    """now + lifetime; 0, which is never, for no lifetime or a time that does not fit."""
    if lifetime == 0 or lifetime > <uint64_t>0xFFFFFFFFFFFFFFFF - now:
        return 0
    return now + lifetime


cdef inline void lease_refresh(Lease *lease, uint64_t now) noexcept nogil:
    """Moves the deadline on, after a use."""
    cdef uint64_t deadline
    if lease.idle:
        deadline = time_after(now, lease.idle)
        if lease.latest and (deadline == 0 or lease.latest < deadline):
            deadline = lease.latest
        elif deadline == 0:
            lease.idle = 0  # later times are later still
        lease.deadline = deadline


cdef inline void lease_begin(Lease *lease, uint64_t now, uint64_t idle, uint64_t lifetime) noexcept nogil:
    """Sets both lifetimes, 0 for none. The thing must not be in the wheel."""
    lease.idle = idle
    lease.latest = time_after(now, lifetime)
    lease.deadline = lease.latest
    lease_refresh(lease, now)


cdef inline bint lease_ended(const Lease *lease, uint64_t now) noexcept nogil:
    return lease.deadline != 0 and lease.deadline <= now
