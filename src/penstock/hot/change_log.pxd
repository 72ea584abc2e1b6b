# C types for change_log.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport memory

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
cdef int _NONE
cdef Py_ssize_t _LOG_BYTES_MAX

@cython.final
cdef class ChangeLog:
    cdef public int64_t position
    cdef public bint is_on
    cdef public bint is_lost
    cdef bytearray _bytes
    cdef bytearray _hashes
    cdef int _op
    cdef int64_t _begin
    cdef int64_t _end
    cdef int64_t _value
    cdef int64_t _ref

    cpdef Py_ssize_t size(self) except -1

    @cython.locals(is_keyed=bint, at=Py_ssize_t, target="unsigned char*")
    cpdef void note(self, int op, int64_t offset, int64_t value) except *

    cpdef void note_range(self, int op, int64_t begin, int64_t end) except *

    cpdef void clock(self, int64_t ms) except *

    cpdef void reset(self, int64_t offset) except *

    cpdef bytes take(self, int64_t position)

    cpdef int clear(self, int64_t position) except -1

    @cython.locals(op=int, hashes="const unsigned char*")
    cdef void _finish(self) except *

    cdef int _put(self, int op, int64_t length) except -1

    cdef int _varint(self, uint64_t number) except -1

    cdef int _byte(self, int value) except -1

cdef int put_varint(bytearray out, uint64_t number) except -1

cdef int put_zigzag(bytearray out, int64_t number) except -1

@cython.locals(at=Py_ssize_t, target="unsigned char*")
cdef int put_byte(bytearray out, int value) except -1
