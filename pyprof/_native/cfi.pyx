# SPDX-License-Identifier: Apache-2.0
# distutils: sources = csrc/cfi.c csrc/cfi_entries.c csrc/cfi_expression.c csrc/cfi_overlay.c csrc/cfi_program.c csrc/cfi_rows.c csrc/cfi_rule.c csrc/gopclntab_code.c csrc/gopclntab_rows.c
"""Unwind rows of an executable, made without the GIL: from its call frame information by csrc/cfi.c, from Go's
program counter table by csrc/gopclntab_rows.c."""

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
    enum: RULE_SWITCH "PYPROF_RULE_SWITCH"
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
STACK_SWITCH = RULE_SWITCH

cdef int EM_X86_64 = 62
cdef int EM_AARCH64 = 183


cdef pyprof_cfi_machine machine_of(int machine) except *:
    if machine == EM_X86_64:
        return PYPROF_CFI_X86_64
    if machine == EM_AARCH64:
        return PYPROF_CFI_ARM64
    raise ElfError(f"no unwind rules are known for ELF machine {machine}")


cdef int check(int error) except -1:
    if error == -ENOMEM:
        raise MemoryError
    if error:
        raise ElfError("there is more unwind information than rows are numbered for")
    return 0


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
        given.machine = machine_of(machine)
        with nogil:
            error = pyprof_cfi_build(&given, &self.cfi)
        check(error)

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

        The first three are their names; flags are SIGNAL_FRAME, SIGNED and STACK_SWITCH.

        Raises:
            IndexError: there is none of that number.
        """
        if number >= self.cfi.rule_count:
            raise IndexError(number)
        cdef const pyprof_rule *rule = &self.cfi.rules[number]
        return (
            CFA_NAMES[rule.cfa], FP_NAMES[rule.fp], RA_NAMES[rule.ra],
            rule.flags & (RULE_SIGNAL | RULE_SIGNED | RULE_SWITCH), PYPROF_RULE_CFA_REGISTER(rule.flags),
            rule.cfa_offset, rule.fp_offset, rule.other,
        )

    def find(self, uint64_t address):
        """Index of the row that covers an address; -1 before the first row."""
        return pyprof_cfi_find(&self.cfi, address)


cdef const uint8_t *bytes_of(const uint8_t[::1] view, const uint8_t *empty):
    return &view[0] if view.shape[0] else empty


def rows_of_go(
    const uint8_t[::1] pairs not None, uint32_t width, uint64_t text, const uint8_t[::1] functions not None,
    const uint8_t[::1] deltas not None, const uint8_t[::1] names not None, const uint8_t[::1] code not None,
    uint64_t code_address, int machine, *, uint32_t deltas_at, uint32_t flags_at, uint32_t quantum,
    UnwindRows other=None
):
    """Makes the rows of a Go program from its program counter table.

    Args:
        pairs: the function table: numbers of `width` bytes, a function's start less `text` and the position of
            its description; then the end of the last function.
        width: 4 or 8.
        text: what starts count from.
        functions, deltas, names: what positions of descriptions, of the stack pointer's distances and of
            names count from.
        code: the code that the functions lie in; what lies elsewhere has no rows.
        code_address: ELF virtual address of its first byte.
        machine: EM_* of the file.
        deltas_at, flags_at: where in a description these are; 0 for no flags.
        quantum: bytes that a unit of a distance between addresses stands for.
        other: rows that hold where Go says nothing.

    Raises:
        ElfError: the machine is none that can be unwound, or there are too many rows.
        ValueError: `width` is another.
    """
    cdef UnwindRows rows = UnwindRows(b"", 0, machine)
    cdef pyprof_go_input given
    cdef pyprof_cfi made
    cdef const pyprof_cfi *lower = NULL
    cdef const uint8_t *empty = <const uint8_t *>&given
    cdef int error
    if width != 4 and width != 8:
        raise ValueError("numbers of 4 or 8 bytes")
    given.pairs = bytes_of(pairs, empty)
    given.width = width
    given.count = <size_t>pairs.shape[0] // width
    given.count = (given.count - 1) // 2 if given.count else 0
    given.text = text
    given.functions = bytes_of(functions, empty)
    given.functions_size = functions.shape[0]
    given.deltas = bytes_of(deltas, empty)
    given.deltas_size = deltas.shape[0]
    given.names = bytes_of(names, empty)
    given.names_size = names.shape[0]
    given.code = bytes_of(code, empty)
    given.code_size = code.shape[0]
    given.code_address = code_address
    given.deltas_at = deltas_at
    given.flags_at = flags_at
    given.quantum = quantum
    given.machine = machine_of(machine)
    if other is not None:
        lower = &other.cfi
    with nogil:
        error = pyprof_go_build(&given, lower, &made)
        # Not known to anyone yet, so it may still change.
        pyprof_cfi_deinit(&rows.cfi)
        rows.cfi = made
    check(error)
    return rows
