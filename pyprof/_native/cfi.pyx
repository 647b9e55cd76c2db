# SPDX-License-Identifier: Apache-2.0
# distutils: sources = csrc/cfi.c csrc/cfi_entries.c csrc/cfi_expression.c csrc/cfi_program.c csrc/cfi_rows.c csrc/cfi_rule.c
"""Unwind rows of an executable, made from its call frame information by csrc/cfi.c without the GIL."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport ENOMEM
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyprof.errors import ElfError

cdef extern from *:
    """
    #define X(name, text) text,
    static const char *pyprof_reason_texts[] = {PYPROF_REASONS(X)};
    #undef X
    #define X(name, text) #name,
    static const char *pyprof_cfa_names[] = {PYPROF_CFAS(X)};
    static const char *pyprof_fp_names[] = {PYPROF_FPS(X)};
    static const char *pyprof_ra_names[] = {PYPROF_RAS(X)};
    #undef X
    """
    const char **pyprof_reason_texts
    const char **pyprof_cfa_names
    const char **pyprof_fp_names
    const char **pyprof_ra_names
    enum: PYPROF_CFA_COUNT
    enum: PYPROF_FP_COUNT
    enum: PYPROF_RA_COUNT
    enum: RULE_SIGNAL "PYPROF_RULE_SIGNAL"
    enum: RULE_SIGNED "PYPROF_RULE_SIGNED"
    int PYPROF_RULE_CFA_REGISTER(int flags)

cdef tuple texts(const char **items, int count):
    return tuple([items[i].decode() for i in range(count)])

REASONS = texts(pyprof_reason_texts, PYPROF_REASON_COUNT)
CFA_NAMES = texts(pyprof_cfa_names, PYPROF_CFA_COUNT)
FP_NAMES = texts(pyprof_fp_names, PYPROF_FP_COUNT)
RA_NAMES = texts(pyprof_ra_names, PYPROF_RA_COUNT)
RULE_SIZE = sizeof(pyprof_rule)
SIGNAL_FRAME = RULE_SIGNAL
SIGNED = RULE_SIGNED

cdef int EM_X86_64 = 62
cdef int EM_AARCH64 = 183


@cython.final
cdef class Column:
    """A read-only buffer over bytes of an UnwindRows, which it keeps alive."""

    cdef UnwindRows owner
    cdef const void *data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.data, self.size, 1, flags)


cdef object column(UnwindRows owner, const void *data, size_t count, size_t item, str format):
    cdef Column made = Column.__new__(Column)
    made.owner = owner
    # An empty table may have no memory; a buffer wants some address.
    made.data = data if data != NULL else <const void *>&owner.cfi
    made.size = count * item
    return memoryview(made).cast(format)


cdef dict by_reason(const uint64_t *counts):
    return {REASONS[i]: counts[i] for i in range(PYPROF_REASON_COUNT) if counts[i]}


cdef class UnwindRows:
    """The unwind rows of one executable; immutable.

    A row says that from its address (an ELF virtual address) up to the next row's one rule holds. Rules are
    struct pyprof_rule (csrc/pyprof_rules.h), each stored once; rule 0 is "no unwind information".
    """

    def __cinit__(
        self, const uint8_t[::1] data not None, uint64_t address, int machine, *,
        bint debug_frame=False, bint stop_at_zero=False, uint64_t text_base=0, uint64_t data_base=0,
        const uint64_t[::1] trampolines=None
    ):
        """Makes rows.

        Args:
            data: call frame information.
            address: ELF virtual address of its first byte; 0 where it is not loaded.
            machine: EM_* of the file.
            debug_frame: it has the layout of .debug_frame.
            stop_at_zero: its size is a guess: an entry of no length is the end.
            text_base, data_base: what pointers relative to text and data count from; 0: refuse them.
            trampolines: signal trampolines that were found by their code, ascending: of each the address of
                the first byte, and of what follows the last.

        Raises:
            ElfError: the machine is none that can be unwound, or there are too many rows.
        """
        cdef pyprof_cfi_input given
        cdef int error
        given.data = &data[0] if data.shape[0] else <const uint8_t *>&given
        given.size = data.shape[0]
        given.address = address
        given.text_base = text_base
        given.data_base = data_base
        given.trampolines = NULL
        given.trampoline_count = 0
        if trampolines is not None and trampolines.shape[0] > 1:
            given.trampolines = &trampolines[0]
            given.trampoline_count = trampolines.shape[0] // 2
        given.debug_frame = debug_frame
        given.stop_at_zero = stop_at_zero
        if machine == EM_X86_64:
            given.machine = PYPROF_CFI_X86_64
        elif machine == EM_AARCH64:
            given.machine = PYPROF_CFI_ARM64
        else:
            raise ElfError(f"no unwind rules are known for ELF machine {machine}")
        with nogil:
            error = pyprof_cfi_build(&given, &self.cfi)
        if error == -ENOMEM:
            raise MemoryError
        if error:
            raise ElfError("there is more unwind information than rows are numbered for")

    def __dealloc__(self):
        pyprof_cfi_deinit(&self.cfi)

    def __len__(self):
        return self.cfi.row_count

    @property
    def addresses(self):
        """Addresses where rows begin, ascending: uint64."""
        return column(self, self.cfi.addresses, self.cfi.row_count, sizeof(uint64_t), "Q")

    @property
    def numbers(self):
        """Number of each row's rule: uint32, of the length of `addresses`."""
        return column(self, self.cfi.numbers, self.cfi.row_count, sizeof(uint32_t), "I")

    @property
    def rules(self):
        """The rules' bytes, RULE_SIZE each."""
        return column(self, self.cfi.rules, self.cfi.rule_count, sizeof(pyprof_rule), "B")

    @property
    def rule_count(self):
        """Number of distinct rules, NONE included."""
        return self.cfi.rule_count

    @property
    def cie_count(self):
        """Number of common information entries."""
        return self.cfi.cie_count

    @property
    def fde_count(self):
        """Number of functions that rows were made from."""
        return self.cfi.fde_count

    @property
    def overlaps(self):
        """Functions that begin within an earlier one, which keeps what both claim."""
        return self.cfi.overlaps

    @property
    def discarded(self):
        """Functions of no size or at address 0, which a linker removed."""
        return self.cfi.discarded

    @property
    def unsupported(self):
        """Reason -> number of rows that have, for that reason, no rule or no rule for the frame pointer."""
        return by_reason(self.cfi.unsupported)

    @property
    def skipped(self):
        """Reason -> number of functions left out: which addresses they cover is not known."""
        return by_reason(self.cfi.skipped)

    def rule(self, uint32_t number):
        """One rule: (cfa, fp, ra, flags, cfa_register, cfa_offset, fp_offset, other).

        The first three are their names; flags are SIGNAL_FRAME and SIGNED.

        Raises:
            IndexError: there is none of that number.
        """
        if number >= self.cfi.rule_count:
            raise IndexError(number)
        cdef const pyprof_rule *rule = &self.cfi.rules[number]
        return (
            CFA_NAMES[rule.cfa], FP_NAMES[rule.fp], RA_NAMES[rule.ra],
            rule.flags & (RULE_SIGNAL | RULE_SIGNED), PYPROF_RULE_CFA_REGISTER(rule.flags),
            rule.cfa_offset, rule.fp_offset, rule.other,
        )

    def find(self, uint64_t address):
        """Index of the row that covers an address; -1 before the first row."""
        return pyprof_cfi_find(&self.cfi, address)
