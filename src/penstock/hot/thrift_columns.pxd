# C types for thrift_columns.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.hot cimport cells, memory
from penstock.hot.typed_columns cimport Column, RowReader

cdef int _BARE
cdef int _FRUGAL
cdef int _DEPTH_MAX
cdef int _VERSION_1
cdef int _COMPACT_PROTOCOL
cdef int _COMPACT_VERSION
cdef int _VARINT_BYTES_MAX
cdef int _SMALL_DEFAULT
cdef int _STOP
cdef int _BOOL
cdef int _BYTE
cdef int _DOUBLE
cdef int _SHORT
cdef int _INT
cdef int _LONG
cdef int _STRING
cdef int _STRUCT
cdef int _MAP
cdef int _SET
cdef int _LIST
cdef int _UUID
cdef const unsigned char* _OF_COMPACT
cdef const unsigned char* _SIZES


cdef class ThriftReader(RowReader):
    cdef bint is_compact
    cdef int frame
    cdef bytes name
    cdef bint is_value
    cdef uint64_t varint

    @cython.locals(reason=int, root=Column, child=Column, kept=Py_ssize_t)
    cdef int _row(self) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, size=Py_ssize_t)
    cdef int _open(self) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, size=Py_ssize_t, is_strict=bint)
    cdef int _binary_begin(self) except -1

    @cython.locals(text="const unsigned char*", reason=int, size=Py_ssize_t)
    cdef int _compact_begin(self) except -1

    @cython.locals(filling=bytes, size=Py_ssize_t, text="const unsigned char*", at=Py_ssize_t, end=Py_ssize_t, reason=int)
    cdef int fill(self, Column column) except -1

    @cython.locals(count=Py_ssize_t, child=Column, reason=int)
    cdef int _close_struct(self, Column column) except -1

    @cython.locals(
        text="const unsigned char*", count=Py_ssize_t, below=Py_ssize_t, children=list, place=Py_ssize_t, at=Py_ssize_t, kind=int,
        id_=int, reason=int, child=Column,
    )
    cdef int _binary_struct(self, Column column) except -1

    @cython.locals(kind=int, at=Py_ssize_t, left=Py_ssize_t, size=Py_ssize_t, reason=int)
    cdef int _binary_value(self, Column column) except -1

    @cython.locals(
        at=Py_ssize_t, kind=int, size=Py_ssize_t, element=Column, _place=Py_ssize_t, count=Py_ssize_t, reason=int
    )
    cdef int _binary_list(self, Column column) except -1

    @cython.locals(
        at=Py_ssize_t, text="const unsigned char*", size=Py_ssize_t, key=Column, value=Column, _place=Py_ssize_t,
        count=Py_ssize_t, reason=int,
    )
    cdef int _binary_map(self, Column column) except -1

    cdef bint _has_room(self, Column element, int64_t size) except -1

    @cython.locals(text="const unsigned char*", left=Py_ssize_t, size=Py_ssize_t, key=int)
    cdef int _skip_binary(self, int kind, int depth) except -1

    @cython.locals(kind=int, reason=int)
    cdef int _skip_binary_struct(self, int depth) except -1

    @cython.locals(_place=Py_ssize_t, reason=int)
    cdef int _skip_binary_values(self, int kind, int other, int64_t count, int depth) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, value=uint64_t, place=int, byte=int)
    cdef int _varint(self) except -1

    @cython.locals(reason=int)
    cdef int _size(self) except -1

    @cython.locals(
        text="const unsigned char*", count=Py_ssize_t, below=Py_ssize_t, children=list, place=Py_ssize_t, id_=int64_t, byte=int,
        kind=int, reason=int, child=Column,
    )
    cdef int _compact_struct(self, Column column) except -1

    @cython.locals(kind=int, at=Py_ssize_t, reason=int, number=int64_t)
    cdef int _compact_value(self, Column column) except -1

    @cython.locals(byte=int)
    cdef int _compact_sizes(self) except -1

    @cython.locals(
        at=Py_ssize_t, reason=int, kind=int, size=Py_ssize_t, element=Column, _place=Py_ssize_t, count=Py_ssize_t
    )
    cdef int _compact_list(self, Column column) except -1

    @cython.locals(
        reason=int, size=Py_ssize_t, key=Column, value=Column, kinds=int, _place=Py_ssize_t, count=Py_ssize_t
    )
    cdef int _compact_map(self, Column column) except -1

    @cython.locals(size=Py_ssize_t, reason=int)
    cdef int _skip_compact(self, int kind, int depth) except -1

    @cython.locals(byte=int, reason=int, kind=int)
    cdef int _skip_compact_struct(self, int depth) except -1

    @cython.locals(at=Py_ssize_t, reason=int, size=Py_ssize_t, kinds=int)
    cdef int _skip_compact_list(self, int kind, int depth) except -1

    @cython.locals(_place=Py_ssize_t, reason=int)
    cdef int _skip_compact_values(self, int kind, int other, int64_t count, int depth) except -1
