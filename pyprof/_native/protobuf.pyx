# SPDX-License-Identifier: Apache-2.0
"""A repeated message, of whose fields each is a column, in the wire format of Protocol Buffers.

Made for tables of many thousand small messages, which the protobuf library takes from here whole, by
MergeFromString(). Format: https://protobuf.dev/programming-guides/encoding/. As there, a field that has its
default value, zero or the empty list, is not written. Items must not change while repeated() runs.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.stdlib cimport malloc

cdef enum:
    VARINT = 0  # types of the wire format
    LEN = 2

cdef enum Form:
    NUMBER
    MESSAGE
    ONE
    LIST
    FIXED

cdef enum:
    MAX_FIELD = (1 << 29) - 1
    MAX_COLUMNS = 8


cdef struct Field:
    Form form
    uint32_t tag
    uint32_t inner  # tag within a MESSAGE
    const uint32_t *narrow  # one of both holds the items
    const uint64_t *wide
    const uint32_t *starts
    const uint32_t *which


@cython.final
cdef class Column:
    """A field of each message. Made by number(), message(), one(), packed() and fixed64()."""

    cdef Form form
    cdef uint32_t field
    cdef uint32_t inner
    cdef const uint32_t[::1] narrow
    cdef const uint64_t[::1] wide
    cdef const uint32_t[::1] starts
    cdef const uint32_t[::1] which

    def __cinit__(self):
        # Until column() sets them: what was never set is not None.
        self.narrow = self.wide = self.starts = self.which = None

    def __init__(self):
        raise TypeError("made by the functions of this module")

    cdef uint64_t items(self):
        return self.narrow.shape[0] if self.narrow is not None else self.wide.shape[0]

    cdef uint64_t rows(self) except? 0:
        """How many messages the column is for. Raises ValueError where not all that it refers to is there."""
        cdef uint64_t lists, i
        if self.starts is None:
            return self.items()
        if self.starts.shape[0] == 0:
            raise ValueError("lists have a start more than there are lists")
        lists = self.starts.shape[0] - 1
        for i in range(lists):
            if self.starts[i] > self.starts[i + 1]:
                raise ValueError("starts of lists descend")
        if self.starts[lists] > self.items():
            raise ValueError("a list ends after the last item")
        if self.which is None:
            return lists
        for i in range(<uint64_t>self.which.shape[0]):
            if self.which[i] >= lists:
                raise ValueError("there is no such list")
        return self.which.shape[0]

    cdef Field as_field(self):
        cdef Field field
        field.form = self.form
        field.tag = self.field << 3 | (VARINT if self.form == NUMBER else LEN)
        field.inner = self.inner << 3 | VARINT
        field.narrow = field.starts = field.which = NULL
        field.wide = NULL
        # The address of an empty column's first item is never read.
        with cython.boundscheck(False):
            if self.narrow is not None:
                field.narrow = &self.narrow[0]
            if self.wide is not None:
                field.wide = &self.wide[0]
            if self.starts is not None:
                field.starts = &self.starts[0]
            if self.which is not None:
                field.which = &self.which[0]
        return field


cdef Column column(Form form, uint32_t field, items, starts=None, which=None, uint32_t inner=1):
    cdef Column made = Column.__new__(Column)
    if not 0 < field <= MAX_FIELD or not 0 < inner <= MAX_FIELD:
        raise ValueError("numbers of fields are 1 to 2^29 - 1")
    made.form = form
    made.field = field
    made.inner = inner
    made.narrow = items if memoryview(items).itemsize == sizeof(uint32_t) else None
    made.wide = items if made.narrow is None else None
    made.starts = starts
    made.which = which
    return made


def number(uint32_t field, items not None):
    """An integer in each message; items: u32 or u64."""
    return column(NUMBER, field, items)


def message(uint32_t field, uint32_t inner, items not None):
    """In each message another one, of which one field is an integer."""
    return column(MESSAGE, field, items, None, None, inner)


def one(uint32_t field, items not None):
    """A repeated integer, of which each message has one, or none where it is zero."""
    return column(ONE, field, items)


def packed(uint32_t field, items not None, starts not None, which=None):
    """A repeated integer. List i is items[starts[i]:starts[i + 1]]; which: number of each message's list, where
    it is not the message's own."""
    return column(LIST, field, items, starts, which)


def fixed64(uint32_t field, const uint64_t[::1] items not None, starts not None):
    """As packed(), of type fixed64."""
    return column(FIXED, field, items, starts)


cdef inline uint32_t varint_size(uint64_t value) noexcept nogil:
    cdef uint32_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t *put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t *put_fixed64(uint8_t *at, uint64_t value) noexcept nogil:
    cdef uint32_t i
    for i in range(8):
        at[i] = <uint8_t>(value >> (8 * i))
    return at + 8


cdef inline uint64_t item(const Field *field, uint64_t at) noexcept nogil:
    return field.narrow[at] if field.narrow != NULL else field.wide[at]


cdef inline void bounds(const Field *field, uint64_t row, uint64_t *first, uint64_t *end) noexcept nogil:
    """Where the list of a message lies."""
    cdef uint64_t list_number = field.which[row] if field.which != NULL else row
    first[0] = field.starts[list_number]
    end[0] = field.starts[list_number + 1]


cdef uint64_t content_size(const Field *field, uint64_t row) noexcept nogil:
    """Bytes of a message's field without what stands before them; 0 where it is not written."""
    cdef uint64_t first, end, i, size = 0
    if field.form < LIST:
        if item(field, row) == 0:
            return 0
        size = varint_size(item(field, row))
        return size + varint_size(field.inner) if field.form == MESSAGE else size
    bounds(field, row, &first, &end)
    if field.form == FIXED:
        return (end - first) * 8
    for i in range(first, end):
        size += varint_size(item(field, i))
    return size


cdef uint64_t field_size(const Field *field, uint64_t row) noexcept nogil:
    cdef uint64_t size = content_size(field, row)
    if size == 0:
        return 0
    if field.form != NUMBER:
        size += varint_size(size)
    return size + varint_size(field.tag)


cdef uint8_t *put_field(uint8_t *at, const Field *field, uint64_t row) noexcept nogil:
    cdef uint64_t first, end, i
    cdef uint64_t size = content_size(field, row)
    if size == 0:
        return at
    at = put_varint(at, field.tag)
    if field.form != NUMBER:
        at = put_varint(at, size)
    if field.form == MESSAGE:
        at = put_varint(at, field.inner)
    if field.form < LIST:
        return put_varint(at, item(field, row))
    bounds(field, row, &first, &end)
    for i in range(first, end):
        at = put_fixed64(at, item(field, i)) if field.form == FIXED else put_varint(at, item(field, i))
    return at


cdef uint64_t message_size(const Field *fields, uint32_t count, uint64_t row) noexcept nogil:
    cdef uint64_t size = 0
    cdef uint32_t i
    for i in range(count):
        size += field_size(&fields[i], row)
    return size


def repeated(uint32_t field, *columns):
    """The bytes of a repeated field of messages.

    Args:
        field: its number in the message around.
        columns: of the messages, one to eight; each has as many rows as there are messages.

    Raises:
        ValueError: columns differ in length, or a list is not where it should be.
    """
    cdef Field fields[MAX_COLUMNS]
    cdef uint32_t i, count = 0
    cdef uint32_t tag = field << 3 | LEN
    cdef uint64_t row, rows = 0, total = 0
    cdef uint64_t *sizes
    cdef uint8_t *at
    cdef bytes made
    cdef Column each
    if not 0 < len(columns) <= MAX_COLUMNS or not 0 < field <= MAX_FIELD:
        raise ValueError("one to eight columns, and a number of 1 to 2^29 - 1")
    for each in columns:
        if each is None:
            raise TypeError("None is no column")
        row = each.rows()
        if count and row != rows:
            raise ValueError("columns differ in length")
        rows = row
        fields[count] = each.as_field()
        count += 1
    sizes = <uint64_t *>malloc((rows + 1) * sizeof(uint64_t))
    if sizes == NULL:
        raise MemoryError
    try:
        with nogil:
            for row in range(rows):
                sizes[row] = message_size(fields, count, row)
                total += varint_size(tag) + varint_size(sizes[row]) + sizes[row]
        made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        at = <uint8_t *>PyBytes_AS_STRING(made)
        with nogil:
            for row in range(rows):
                at = put_varint(put_varint(at, tag), sizes[row])
                for i in range(count):
                    at = put_field(at, &fields[i], row)
    finally:
        free(sizes)
    return made
