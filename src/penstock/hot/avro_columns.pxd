# C types for avro_columns.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport cells
from penstock.hot.typed_columns cimport Column, RowReader

cdef int _FIXED
cdef int _ENUM
cdef int _NAMED
cdef int _DEPTH_MAX
cdef int _VARINT_BYTES_MAX


cdef class AvroReader(RowReader):
    cdef int64_t number
    cdef dict records

    @cython.locals(child=Column)
    cdef int _note(self, Column column) except -1

    cdef int _row(self) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, value=uint64_t, place=int, byte=int)
    cdef int _number(self) except -1

    @cython.locals(reason=int)
    cdef int _size(self) except -1

    cdef int _bytes_size(self, Column column) except -1

    @cython.locals(child=Column, reason=int)
    cdef int _struct(self, Column column) except -1

    @cython.locals(kind=int, reason=int, number=int64_t, begin=Py_ssize_t)
    cdef int _value(self, Column column) except -1

    @cython.locals(reason=int, branches=Py_ssize_t)
    cdef int _branch(self, Column column) except -1

    @cython.locals(reason=int, chosen=int64_t, place=Py_ssize_t, child=Column)
    cdef int _choice(self, Column column) except -1

    @cython.locals(reason=int, count=int64_t)
    cdef int _count(self) except -1

    @cython.locals(reason=int, count=int64_t, child=Column, _place=int64_t)
    cdef int _blocks(self, Column column) except -1

    @cython.locals(kind=int, reason=int, child=Column)
    cdef int _skip(self, Column column, int depth) except -1

    @cython.locals(reason=int, count=int64_t, child=Column, _place=int64_t)
    cdef int _skip_blocks(self, Column column, int depth) except -1
