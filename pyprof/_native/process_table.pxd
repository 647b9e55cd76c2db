# SPDX-License-Identifier: Apache-2.0
"""The process table: every process of the host and what it has mapped, as of an event's time."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from pyprof._native.executables cimport Executables
from pyprof._native.index cimport Index
from pyprof._native.mappings cimport Trie
from pyprof._native.memory cimport List32
from pyprof._native.ranges cimport Range, Ranges
from pyprof._native.signs cimport Signs


cdef enum TargetState:
    NOT_TARGET = 0
    TARGET_ON_EXEC = 1  # becomes one with its next exec
    TARGET = 2


cdef struct Process:
    uint64_t start_time  # of the leader, ns since boot; 0 until a sample tells
    uint64_t forked_at  # or executed, CLOCK_MONOTONIC, ns; 0 where no event told
    uint64_t exited_at  # 0 while it lives
    uint64_t rescan_after  # when its maps may be read again
    uint64_t publish_after  # when it may be written to the kernel again
    uint64_t resync_at  # when its maps are to be compared with what is known; 0 before that is planned
    uint64_t sent_at  # when the last profile with samples of it was sent; 0 for none
    uint64_t last_sampled  # CLOCK_MONOTONIC, ns
    Ranges *ranges
    Signs signs
    uint32_t pid  # 0: the slot is free
    uint32_t serial  # new with each exec; never 0, and with the pid unique
    uint32_t program  # number of the executable that it runs; 0 where unknown
    uint32_t parent  # pid of the process that forked it; 0 where no event told
    int32_t threads
    uint8_t target
    uint8_t known  # its ranges are what it has mapped
    uint8_t published  # its ranges belong into the kernel's trie
    uint8_t queued  # in `changed`
    uint8_t asked  # in `unknown`
    uint8_t leader_exited
    uint8_t gone  # it ended before its mappings could be read
    uint8_t hidden  # its samples are not wanted: one entry in the trie, for all addresses, says so
    uint8_t unsent  # UNSENT or SENDING where samples of it were counted and not sent yet
    uint32_t resync_wait  # seconds between two comparisons


# Seconds from one comparison of a process's mappings with /proc to the next one.
cdef extern from *:
    """
    #define RESYNC_FIRST 10u
    #define RESYNC_LAST 640u
    """
    const uint32_t RESYNC_FIRST
    const uint32_t RESYNC_LAST


cdef enum SendState:
    SENT = 0
    UNSENT = 1
    SENDING = 2


cdef struct Table:
    Process *processes
    uint64_t capacity
    uint32_t count
    uint32_t last_serial
    List32 free_slots
    Index index
    Executables executables
    Trie *trie
    List32 unknown  # pids whose maps are to be read
    List32 changed  # pids whose ranges are to be written to the kernel
    List32 leaders  # pids whose leader has exited while threads go on
    List32 exited  # pids that ended, to be forgotten after a while
    uint64_t events
    uint64_t lost_events
    uint64_t kernel_symbols  # that came or went
    uint64_t no_memory  # events not applied for want of memory
    uint64_t evicted  # processes that gave way in a full trie
    uint64_t refused  # those for which nobody gave way
    bint only_targets


cdef Process *table_find(Table *table, uint32_t pid) noexcept nogil
cdef Process *table_add(Table *table, uint32_t pid, uint64_t time) noexcept nogil
cdef uint32_t table_serial(Table *table) noexcept nogil
cdef void table_fork(Table *table, uint32_t pid, uint32_t parent, uint64_t time) noexcept nogil
cdef void table_thread(Table *table, uint32_t pid) noexcept nogil
cdef void table_exec(Table *table, uint32_t pid, uint64_t time) noexcept nogil
cdef void table_exit(Table *table, uint32_t pid, uint32_t tid, uint64_t time) noexcept nogil
cdef void table_map(Table *table, uint32_t pid, const Range *added, bint writable) noexcept nogil
cdef void table_ask(Table *table, Process *process) noexcept nogil
cdef void table_publish(Table *table, Process *process) noexcept nogil
cdef void table_hide(Table *table, Process *process) noexcept nogil
cdef void table_forget(Table *table, uint32_t pid, uint64_t time) noexcept nogil
cdef void table_withdraw(Table *table, Process *process, uint64_t time) noexcept nogil
cdef void table_end(Table *table, Process *process, uint64_t time) noexcept nogil
cdef void table_settle(Process *process) noexcept nogil
