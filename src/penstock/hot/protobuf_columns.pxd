# C types for protobuf_columns.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport cells, memory
from penstock.hot.thrift_columns cimport ThriftReader
from penstock.hot.typed_columns cimport Column, RowReader

cdef int _VARINT
cdef int _FIXED64
cdef int _SIZED
cdef int _GROUP
cdef int _FIXED32
cdef int _ZIGZAG
cdef int _ONEOF
cdef int _DEPTH_MAX
cdef int _VARINT_BYTES_MAX
cdef int64_t _ID_MAX


cdef class ProtobufReader(RowReader):
    cdef bint has_indexes
    cdef uint64_t varint
    cdef int64_t tag
    cdef ThriftReader filler

    @cython.locals(reason=int)
    cdef int _row(self) except -1

    @cython.locals(reason=int, count=int64_t, _place=int64_t)
    cdef int _skip_indexes(self) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, value=uint64_t, place=int, byte=int)
    cdef int _varint(self) except -1

    @cython.locals(reason=int)
    cdef int _size(self) except -1

    @cython.locals(reason=int)
    cdef int _tag(self) except -1

    @cython.locals(
        count=Py_ssize_t, below=Py_ssize_t, children=list, begin=Py_ssize_t, is_merged=bint, place=Py_ssize_t,
        reason=int, id_=int64_t, wire=int, child=Column,
    )
    cdef int _message(self, Column column) except -1

    @cython.locals(first=Column, before=Py_ssize_t, other=Column)
    cdef int _choose(self, Column column, Column child, Py_ssize_t place) except -1

    @cython.locals(count=Py_ssize_t, child=Column, reason=int)
    cdef int _close_message(self, Column column) except -1

    @cython.locals(
        count=Py_ssize_t, joined=dict, reason=int, id_=int64_t, wire=int, place=Py_ssize_t, child=Column,
        size=Py_ssize_t, part=bytearray,
    )
    cdef int _merge(self, Column column, Py_ssize_t begin) except -1

    @cython.locals(first=Column, before=Py_ssize_t, part=bytearray, other=Column, reason=int)
    cdef int _drop(self, Column column, Column child, Py_ssize_t place, dict joined) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, end=Py_ssize_t, is_raw=bint, reason=int)
    cdef int _joined(self, Column column, bytes message) except -1

    @cython.locals(element=Column, reason=int, outer=Py_ssize_t)
    cdef int _elements(self, Column column, int64_t id_, int wire) except -1

    @cython.locals(
        reason=int, outer=Py_ssize_t, key=Column, value=Column, count=Py_ssize_t, id_=int64_t, wire=int, part=Column
    )
    cdef int _entry(self, Column column) except -1

    @cython.locals(outer=Py_ssize_t, reason=int)
    cdef int _missing(self, Column column, Py_ssize_t count) except -1

    cdef bint _has_room(self, Column element) except -1

    @cython.locals(kind=int, reason=int, number=int64_t, begin=Py_ssize_t, end=Py_ssize_t, outer=Py_ssize_t)
    cdef int _value(self, Column column) except -1

    @cython.locals(reason=int, inner=int64_t, kind=int, size=Py_ssize_t)
    cdef int _skip(self, int64_t id_, int wire, int depth) except -1
