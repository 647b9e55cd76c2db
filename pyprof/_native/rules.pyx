# SPDX-License-Identifier: Apache-2.0
"""Bodies of rules.pxd.

A number that is free may become another rule's at once: who gives one back makes sure before that no walk of the
kernel side can still be reading a row that names it.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset

from pyprof._native.hashing cimport pyprof_hash_bytes
from pyprof._native.index cimport index_add, index_deinit, index_init, index_remove, index_reserve, slot_id

cdef uint32_t MAX_NEW = 4096  # that one file may bring; a whole distribution has some 2,000
cdef uint32_t NO_ROOM = 0xffffffff


cdef int rules_init(RuleTable *table, pyprof_rule *rules, uint64_t seed) noexcept nogil:
    """0, or -1 without memory."""
    cdef pyprof_rule unsupported
    memset(table, 0, sizeof(RuleTable))
    table.rules = rules
    table.seed = seed
    table.users = <uint32_t *>calloc(PYPROF_MAX_RULES, sizeof(uint32_t))
    table.free = <uint16_t *>calloc(PYPROF_MAX_RULES, sizeof(uint16_t))
    if table.users == NULL or table.free == NULL or index_init(&table.index, 4096) < 0:
        rules_deinit(table)
        return -1
    memset(&unsupported, 0, sizeof(unsupported))
    number_of(table, &unsupported)  # all zeros: PYPROF_RULE_NONE, number 0
    unsupported.cfa = PYPROF_CFA_UNSUPPORTED
    number_of(table, &unsupported)
    table.users[PYPROF_RULE_NONE] = table.users[RULE_UNSUPPORTED] = 1  # for good
    return 0


cdef void rules_deinit(RuleTable *table) noexcept nogil:
    free(table.users)
    free(table.free)
    index_deinit(&table.index)
    memset(table, 0, sizeof(RuleTable))


cdef uint32_t rules_used(const RuleTable *table) noexcept nogil:
    """How many rules there are."""
    return table.count - table.free_count


cdef uint32_t slot_of(const RuleTable *table, const pyprof_rule *rule, uint32_t tag) noexcept nogil:
    cdef uint32_t at = tag & table.index.mask
    while table.index.slots[at]:
        if <uint32_t>(table.index.slots[at] >> 32) == tag and memcmp(
            &table.rules[slot_id(table.index.slots[at])], rule, sizeof(pyprof_rule)
        ) == 0:
            break
        at = (at + 1) & table.index.mask
    return at


cdef inline uint32_t tag_of(const RuleTable *table, const pyprof_rule *rule) noexcept nogil:
    return <uint32_t>(pyprof_hash_bytes(rule, sizeof(pyprof_rule), table.seed) >> 32)


cdef uint32_t number_of(RuleTable *table, const pyprof_rule *rule) noexcept nogil:
    """Number of a rule, made where it is new; NO_ROOM where that cannot be."""
    cdef uint32_t tag = tag_of(table, rule), number
    cdef uint32_t at = slot_of(table, rule, tag)
    if table.index.slots[at]:
        return slot_id(table.index.slots[at])
    if rules_used(table) >= PYPROF_MAX_RULES or index_reserve(&table.index) < 0:
        return NO_ROOM
    if table.free_count:
        table.free_count -= 1
        number = table.free[table.free_count]
    else:
        number = table.count
        table.count += 1
    table.rules[number] = rule[0]
    table.users[number] = 0
    index_add(&table.index, tag, number)
    return number


cdef int rules_take(
    RuleTable *table, const pyprof_rule *wanted, uint64_t count, bint partial, RuleUse *use, uint64_t *refused
) noexcept nogil:
    """Numbers of the rules of a file, which it uses from now on. 0; -1 without memory; -2 where the table is
    full, unless a part of them is enough. For others, and those beyond what one file may bring, stands
    RULE_UNSUPPORTED."""
    cdef uint64_t i
    cdef uint32_t number, had
    cdef uint32_t fresh = 0
    use.count = 0
    use.numbers = <uint16_t *>malloc((count + 1) * sizeof(uint16_t))
    if use.numbers == NULL:
        return -1
    for i in range(count):
        had = rules_used(table)
        if fresh < MAX_NEW:
            number = number_of(table, &wanted[i])
            if number == NO_ROOM and not partial:
                rules_give(table, use)
                return -2
            fresh += rules_used(table) - had
        else:
            number = slot_of(table, &wanted[i], tag_of(table, &wanted[i]))
            number = slot_id(table.index.slots[number]) if table.index.slots[number] else NO_ROOM
        if number == NO_ROOM:
            refused[0] += 1
            number = RULE_UNSUPPORTED
        table.users[number] += 1
        use.numbers[i] = <uint16_t>number
        use.count += 1
    return 0


cdef void rules_give(RuleTable *table, RuleUse *use) noexcept nogil:
    """Gives back what a file used; what nobody uses any more is free."""
    cdef uint64_t i
    cdef uint32_t number
    for i in range(use.count):
        number = use.numbers[i]
        table.users[number] -= 1
        if table.users[number] == 0:
            index_remove(&table.index, slot_of(table, &table.rules[number], tag_of(table, &table.rules[number])))
            table.free[table.free_count] = <uint16_t>number
            table.free_count += 1
    free(use.numbers)
    memset(use, 0, sizeof(RuleUse))


cdef bint rules_alone(const RuleTable *table, const RuleUse *use) noexcept nogil:
    """Whether giving it back frees a rule: only where a rule is named once in it, but that is enough to know."""
    cdef uint64_t i
    for i in range(use.count):
        if table.users[use.numbers[i]] == 1:
            return True
    return False
