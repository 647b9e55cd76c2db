# SPDX-License-Identifier: Apache-2.0
"""Bodies of executables.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset, strlen, strncmp

from pyprof._native.hashing cimport pyprof_hash_bytes
from pyprof._native.index cimport (
    index_add,
    index_deinit,
    index_init,
    index_remove,
    index_reserve,
    slot_id,
)
from pyprof._native.memory cimport grow, list_push, list_reserve


cdef int executables_init(Executables *table, uint64_t seed) noexcept nogil:
    """seed: of the hash, a secret one, since build IDs are chosen by what is profiled."""
    memset(table, 0, sizeof(Executables))
    table.seed = seed
    if index_init(&table.index, 256) < 0:
        return -1
    if grow(<void **>&table.items, &table.capacity, 256, sizeof(Executable)) < 0:
        index_deinit(&table.index)
        return -1
    memset(table.items, 0, 2 * sizeof(Executable))
    table.count = 2
    return 0


cdef void executables_deinit(Executables *table) noexcept nogil:
    cdef uint32_t i
    for i in range(table.count):
        free(table.items[i].path)
    free(table.items)
    free(table.fresh.items)
    free(table.free_numbers.items)
    free(table.counted.items)
    free(table.sending.items)
    index_deinit(&table.index)
    memset(table, 0, sizeof(Executables))


cdef uint32_t slot_of(const Executables *table, const ExecutableKey *key, uint32_t tag) noexcept nogil:
    """Slot of a key in the index, or the free slot that ends its probe sequence."""
    cdef uint32_t at = tag & table.index.mask
    while table.index.slots[at]:
        if <uint32_t>(table.index.slots[at] >> 32) == tag and memcmp(
            &table.items[slot_id(table.index.slots[at])].key, key, sizeof(ExecutableKey)
        ) == 0:
            break
        at = (at + 1) & table.index.mask
    return at


cdef inline uint32_t tag_of(const Executables *table, const ExecutableKey *key) noexcept nogil:
    return <uint32_t>(pyprof_hash_bytes(key, sizeof(ExecutableKey), table.seed) >> 32)


cdef uint32_t executables_number(
    Executables *table, const ExecutableKey *key, const char *path, uint32_t path_size,
    uint32_t pid, uint64_t start, uint64_t last
) noexcept nogil:
    """Number of the key's executable, made where it is new; NO_EXECUTABLE without memory."""
    cdef uint32_t tag = tag_of(table, key)
    cdef uint32_t at = slot_of(table, key, tag)
    cdef uint32_t number
    cdef Executable *item
    cdef char *copy
    if table.index.slots[at]:
        number = slot_id(table.index.slots[at])
        table.items[number].unused_since = 0
        return number
    if index_reserve(&table.index) < 0 or list_push(&table.fresh, 0) < 0:
        return NO_EXECUTABLE
    table.fresh.count -= 1
    copy = <char *>malloc(<uint64_t>path_size + 1)
    if copy == NULL:
        return NO_EXECUTABLE
    if table.free_numbers.count:
        table.free_numbers.count -= 1
        number = table.free_numbers.items[table.free_numbers.count]
    # Room for the number in each of the lists, so that counting and releasing cannot fail.
    elif (
        grow(<void **>&table.items, &table.capacity, <uint64_t>table.count + 1, sizeof(Executable)) < 0
        or list_reserve(&table.free_numbers, <uint64_t>table.count + 1) < 0
        or list_reserve(&table.counted, <uint64_t>table.count + 1) < 0
        or list_reserve(&table.sending, <uint64_t>table.count + 1) < 0
    ):
        free(copy)
        return NO_EXECUTABLE
    else:
        number = table.count
        table.count += 1
    item = &table.items[number]
    memset(item, 0, sizeof(Executable))
    memcpy(copy, path, path_size)
    copy[path_size] = 0
    item.path = copy
    item.path_size = path_size
    item.key = key[0]
    item.pid = pid
    item.start = start
    item.last = last
    index_add(&table.index, tag, number)
    table.fresh.items[table.fresh.count] = number
    table.fresh.count += 1
    return number


cdef void executables_count(Executables *table, uint32_t number) noexcept nogil:
    """Says that a counted frame names an executable."""
    if executables_has(table, number) and not table.items[number].counted:
        table.items[number].counted = 1
        table.counted.items[table.counted.count] = number
        table.counted.count += 1


cdef void executables_taken(Executables *table) noexcept nogil:
    """Says that what was counted is being sent, and what was being sent before is sent."""
    cdef List32 sent = table.sending
    cdef uint64_t i
    for i in range(table.counted.count):
        table.items[table.counted.items[i]].counted = 0
    table.sending = table.counted
    table.counted = sent
    table.counted.count = 0


cdef void executables_release(Executables *table, uint32_t number) noexcept nogil:
    """Forgets an executable that no owner names; its number may stand for another one afterwards."""
    cdef Executable *item
    if not executables_has(table, number):
        return
    item = &table.items[number]
    index_remove(&table.index, slot_of(table, &item.key, tag_of(table, &item.key)))
    free(item.path)
    memset(item, 0, sizeof(Executable))
    table.free_numbers.items[table.free_numbers.count] = number
    table.free_numbers.count += 1


cdef void key_of_name(ExecutableKey *key, const char *name, uint32_t size) noexcept nogil:
    """[vdso] and the like: two hashes stand for a name of any length."""
    cdef uint64_t first = pyprof_hash_bytes(name, size, 1)
    cdef uint64_t second = pyprof_hash_bytes(name, size, 2)
    memset(key, 0, sizeof(ExecutableKey))
    key.kind = KEY_NAME
    key.size = 16
    memcpy(&key.bytes[0], &first, 8)
    memcpy(&key.bytes[8], &second, 8)


cdef void key_of_inode(ExecutableKey *key, uint32_t major, uint32_t minor, uint64_t inode) noexcept nogil:
    memset(key, 0, sizeof(ExecutableKey))
    key.kind = KEY_INODE
    key.size = 16
    memcpy(&key.bytes[0], &inode, 8)
    memcpy(&key.bytes[8], &major, 4)
    memcpy(&key.bytes[12], &minor, 4)


cdef void key_of_build_id(ExecutableKey *key, const uint8_t *build_id, uint32_t size) noexcept nogil:
    memset(key, 0, sizeof(ExecutableKey))
    key.kind = KEY_BUILD_ID
    key.size = <uint8_t>min(size, 20)
    memcpy(&key.bytes[0], build_id, key.size)


cdef bint is_anonymous(const char *path, uint32_t size) noexcept nogil:
    """Whether a mapping's name stands for memory without a file (perf says //anon, /proc nothing)."""
    if size == 0 or (size == 6 and strncmp(path, "//anon", 6) == 0):
        return True
    if size >= 6 and strncmp(path, "[heap]", 6) == 0:
        return True
    return size >= 6 and (strncmp(path, "[stack", 6) == 0 or strncmp(path, "[anon:", 6) == 0)
