# SPDX-License-Identifier: Apache-2.0
"""Bodies of leases.pxd."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memset

cdef extern from *:
    """
    #define count_leading_zeros(x) ((uint32_t)__builtin_clzll(x))
    #define count_trailing_zeros(x) ((uint32_t)__builtin_ctzll(x))
    """
    uint32_t count_leading_zeros(uint64_t x) noexcept nogil
    uint32_t count_trailing_zeros(uint64_t x) noexcept nogil

cdef enum:
    SLOT_BITS = 6


cdef inline uint32_t slot_at(uint64_t time, uint32_t level) noexcept nogil:
    """The slot of a level that a time falls in."""
    return <uint32_t>(time >> (level * SLOT_BITS)) & (WHEEL_SLOTS - 1)


cdef void wheel_clear(Wheel *wheel) noexcept nogil:
    """Forgets all things; the time reached stays."""
    memset(wheel.occupied, 0, sizeof(wheel.occupied))
    memset(wheel.first, 0, sizeof(wheel.first))
    wheel.count = 0


cdef void wheel_link(Wheel *wheel, Lease *leases, uint32_t id) noexcept nogil:
    """Takes a thing into the wheel, unless it never ends. Its deadline must not lie before the time
    reached."""
    cdef Lease *lease = &leases[id]
    cdef uint64_t differ = lease.deadline ^ wheel.reached
    cdef uint32_t level = 0
    cdef uint32_t place
    if lease.deadline == 0:
        return
    # The highest digit in which the deadline differs from the time reached: its slot lies ahead on that level,
    # and all slots of the levels below come before it.
    if differ:
        level = (63 - count_leading_zeros(differ)) // SLOT_BITS
    place = level * WHEEL_SLOTS + slot_at(lease.deadline, level)
    lease.place = <uint16_t>(place + 1)
    lease.prev = 0
    lease.next = wheel.first[place]
    if lease.next:
        leases[lease.next].prev = id
    wheel.first[place] = id
    wheel.occupied[level] |= <uint64_t>1 << slot_at(lease.deadline, level)
    wheel.count += 1


cdef void wheel_unlink(Wheel *wheel, Lease *leases, uint32_t id) noexcept nogil:
    """Takes a thing out of the wheel, if it is there."""
    cdef Lease *lease = &leases[id]
    cdef uint32_t place
    if lease.place == 0:
        return
    place = <uint32_t>lease.place - 1
    if lease.next:
        leases[lease.next].prev = lease.prev
    if lease.prev:
        leases[lease.prev].next = lease.next
    else:
        wheel.first[place] = lease.next
        if lease.next == 0:
            wheel.occupied[place // WHEEL_SLOTS] &= ~(<uint64_t>1 << (place % WHEEL_SLOTS))
    lease.place = 0
    wheel.count -= 1


cdef uint32_t due(const Wheel *wheel) noexcept nogil:
    """A thing in a slot that the wheel stands at, or 0."""
    cdef uint32_t level, slot
    for level in range(<uint32_t>WHEEL_LEVELS):
        slot = slot_at(wheel.reached, level)
        if wheel.occupied[level] >> slot & 1:
            return wheel.first[level * WHEEL_SLOTS + slot]
    return 0


cdef bint advance(Wheel *wheel, uint64_t now) noexcept nogil:
    """Goes to the next occupied slot, or to now if that comes first: then False."""
    cdef uint32_t level, width
    cdef uint64_t start
    for level in range(<uint32_t>WHEEL_LEVELS):
        if wheel.occupied[level] == 0:
            continue
        # Occupied slots lie ahead of the time reached, and those of the lowest level are the next.
        width = level * SLOT_BITS
        start = wheel.reached >> width
        start = (start - start % WHEEL_SLOTS + count_trailing_zeros(wheel.occupied[level])) << width
        if start > now:
            break
        wheel.reached = start
        return True
    # No slot begins between what was reached and now, so that every thing keeps its place.
    wheel.reached = now
    return False


cdef uint32_t wheel_ended(Wheel *wheel, Lease *leases, uint64_t now, uint64_t *budget) noexcept nogil:
    """A thing that has ended, or 0. It stays in the wheel: the caller takes it out before the next call.

    now: never less than in an earlier call. budget: steps to take at most, less those taken; 0 comes back also
    where they do not suffice, and the next call goes on from there.
    """
    cdef uint32_t id
    while budget[0] and wheel.count:
        budget[0] -= 1
        id = due(wheel)
        if id == 0:
            if not advance(wheel, now):
                return 0
        elif lease_ended(&leases[id], now):
            return id
        else:
            wheel_unlink(wheel, leases, id)
            wheel_link(wheel, leases, id)
    return 0
