# SPDX-License-Identifier: Apache-2.0
"""The host's table of unwind rules: each kept once, for as long as an executable uses it."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyprof._native.index cimport Index


cdef extern from "pyprof_abi.h" nogil:
    enum:
        PYPROF_MAX_RULES
        PYPROF_RULE_NONE
        PYPROF_CFA_UNSUPPORTED

    cdef struct pyprof_rule:
        uint8_t cfa
        uint8_t fp
        uint8_t ra
        uint8_t flags
        int cfa_offset
        int fp_offset
        int other


cdef enum:
    RULE_UNSUPPORTED = 1  # what stands for a rule that finds no room


cdef struct RuleTable:
    pyprof_rule *rules  # memory that the kernel side reads; 0 is PYPROF_RULE_NONE
    uint32_t *users  # by number: how often it is named; 0: the number is free
    uint16_t *free
    uint32_t free_count
    uint32_t count  # numbers ever given
    uint64_t seed  # of the hash
    Index index


cdef struct RuleUse:  # what one executable names
    uint16_t *numbers
    uint64_t count


cdef int rules_init(RuleTable *table, pyprof_rule *rules, uint64_t seed) noexcept nogil
cdef void rules_deinit(RuleTable *table) noexcept nogil
cdef uint32_t rules_used(const RuleTable *table) noexcept nogil
cdef int rules_take(
    RuleTable *table, const pyprof_rule *wanted, uint64_t count, bint partial, RuleUse *use, uint64_t *refused
) noexcept nogil
cdef void rules_give(RuleTable *table, RuleUse *use) noexcept nogil
cdef bint rules_alone(const RuleTable *table, const RuleUse *use) noexcept nogil
