# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef extern from "cfi.h" nogil:
    struct pyprof_rule:
        uint8_t cfa
        uint8_t fp
        uint8_t ra
        uint8_t flags
        int32_t cfa_offset
        int32_t fp_offset
        int32_t other

    enum: PYPROF_RULE_NONE
    enum: PYPROF_REASON_COUNT

    # Also an enum; only its values are of use.
    ctypedef int pyprof_cfi_machine "enum pyprof_cfi_machine"
    enum: PYPROF_CFI_X86_64
    enum: PYPROF_CFI_ARM64

    struct pyprof_cfi_input:
        const uint8_t *data
        size_t size
        uint64_t address
        uint64_t text_base
        uint64_t data_base
        const uint64_t *trampolines
        size_t trampoline_count
        pyprof_cfi_machine machine
        bint debug_frame
        bint stop_at_zero

    struct pyprof_cfi:
        uint64_t *addresses
        uint32_t *numbers
        size_t row_count
        pyprof_rule *rules
        uint32_t rule_count
        size_t cie_count
        size_t fde_count
        size_t overlaps
        size_t discarded
        uint64_t *unsupported
        uint64_t *skipped

    int pyprof_cfi_build(const pyprof_cfi_input *input, pyprof_cfi *ret)
    void pyprof_cfi_deinit(pyprof_cfi *cfi)
    Py_ssize_t pyprof_cfi_find(const pyprof_cfi *cfi, uint64_t address)


cdef extern from "gopclntab_rows.h" nogil:
    struct pyprof_go_input:
        const uint8_t *pairs
        size_t count
        size_t width
        uint64_t text
        const uint8_t *functions
        size_t functions_size
        const uint8_t *deltas
        size_t deltas_size
        const uint8_t *names
        size_t names_size
        const uint8_t *code
        size_t code_size
        uint64_t code_address
        uint32_t deltas_at
        uint32_t flags_at
        uint32_t quantum
        pyprof_cfi_machine machine

    int pyprof_go_build(const pyprof_go_input *input, const pyprof_cfi *other, pyprof_cfi *ret)


@cython.final
cdef class UnwindRows:
    # Does not change once made, so other modules may read it without the GIL while they hold a reference.
    cdef pyprof_cfi cfi
