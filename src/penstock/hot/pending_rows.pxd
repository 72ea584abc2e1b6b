# C types for pending_rows.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from penstock.hot cimport change_log, load, memory
from penstock.hot.pending cimport PendingTable

cdef int64_t _NEVER
cdef int64_t _MOST
cdef int64_t _TIME_MAX
cdef int _FREE
cdef int _HAND
cdef int _WAITS
cdef int _READY
cdef int _PARKED
cdef int _ENDED
cdef int _STATE_BITS
cdef int32_t _STATE_MASK
cdef int _ALONE
cdef int _ONCE
cdef int _FOLLOWS
cdef int _SAME_DUE
cdef int64_t _COUNT_MAX
cdef int64_t _HASH_MASK
cdef int _CLOCK
cdef int _DELIVER
cdef int _KEYED
cdef int _PARK
cdef int _PASS
cdef int _AGAIN
cdef int _SETTLE
cdef int _NAK
cdef int _PROGRESS
cdef int _GONE
cdef int _ALL
cdef int _RESET

@cython.final
cdef class Numbers:
    cdef bytes data
    cdef Py_ssize_t at
    cdef Py_ssize_t end

    @cython.locals(text="const unsigned char*")
    cdef int byte(self) except -1

    @cython.locals(number=int64_t, shift=int, byte=int64_t)
    cdef int64_t varint(self, int64_t most) except -1

    @cython.locals(number=int64_t)
    cdef int64_t zigzag(self, int64_t most) except? -1

    @cython.locals(text="const unsigned char*")
    cdef int64_t key_hash(self) except -1

@cython.locals(
    out=bytearray, end=int64_t, last=int64_t, due=int64_t, index=Py_ssize_t, mark=int32_t, stop=Py_ssize_t, gap=int64_t,
    deliveries=int64_t, tag=int, has_due=bint, at=Py_ssize_t, target="unsigned char*",
)
cpdef bytes encode_entries(PendingTable table)

@cython.locals(marks="int32_t*", is_delivered=bint, behind=Py_ssize_t)
cdef Py_ssize_t _run_end(PendingTable table, Py_ssize_t index) except -1

@cython.locals(
    source=Numbers, end=int64_t, last=int64_t, due=int64_t, gap=int64_t, tag=int, state=int, length=int64_t,
    deliveries=int64_t, apart=int64_t, has_due=bint, offset=int64_t, key_hash=int64_t,
)
cpdef object decode_entries(PendingTable table, bytes data, Py_ssize_t at, int64_t entries_max)

cdef bint _is_state(int state, int64_t deliveries) noexcept

@cython.locals(
    source=Numbers, ref=int64_t, tag=int, op=int, length=int64_t, begin=int64_t, delay_ms=int64_t,
)
cpdef object apply_change(PendingTable table, bytes data, Py_ssize_t at, int64_t entries_max)

@cython.locals(offset=int64_t, end=int64_t, key_hash=int64_t)
cdef int _enter(PendingTable table, Numbers source, int op, int64_t length, int64_t entries_max) except -1

@cython.locals(index=Py_ssize_t, deliveries=int64_t)
cdef void _change(PendingTable table, Numbers source, int op, int64_t offset, int64_t delay_ms) except *
