# C types for rows.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from penstock.hot cimport lifetimes, load, subjects
from penstock.hot.headers cimport HeaderFields
from penstock.hot.message_ids cimport key_of
from penstock.hot.load cimport loose_int32

cdef int _SUBJECT
cdef int _KEY
cdef int _VALUE
cdef int _HEADERS
cdef int _COLUMNS
cdef int _FIRST_NODE
cdef int _FIRST_BUFFER
cdef int _NODES
cdef int _BUFFERS
cdef int _VALIDITY
cdef int _ENDS
cdef int _VALUES
cdef unsigned char _CONTINUES
cdef unsigned char _UPPER_TWO
cdef unsigned char _DOT
cdef unsigned char _STAR
cdef unsigned char _GREATER
cdef int64_t _S_US
cdef int64_t _INVALID
cdef int64_t _NEVER
cdef int _OF_SUBJECT
cdef int _OF_ALL


cdef class BatchRows:
    cdef object _data
    cdef bytes _metadata
    cdef Py_ssize_t _body_position
    cdef Py_ssize_t _nodes_position
    cdef Py_ssize_t _buffers_position
    cdef Py_ssize_t _count

    @cython.locals(column=int)
    cpdef object mistake(self)

    @cython.locals(ends="const loose_int32*", count=Py_ssize_t, size=int64_t, nulls=int64_t, absent=int64_t)
    cdef object _column_mistake(self, int column)

    @cython.locals(ends="const loose_int32*", data="const unsigned char*", at=int32_t, size=Py_ssize_t, row=Py_ssize_t)
    cdef bint _is_text(self, bytes text) except -1

    @cython.locals(
        text=bytes, data="const unsigned char*", ends="const loose_int32*", begin=Py_ssize_t, end=Py_ssize_t,
        last_begin=Py_ssize_t, last_end=Py_ssize_t, row=Py_ssize_t, patterns=list,
    )
    cpdef object refused_subject(self, bytes pattern)

    @cython.locals(size=int64_t)
    cpdef object widest_message(self, int64_t limit)

    @cython.locals(size=int64_t)
    cpdef object widest_key(self, int64_t limit)

    @cython.locals(
        nulls=int64_t, count=Py_ssize_t, ends="const loose_int32*", bits=bytes, valid="const unsigned char*",
        row=Py_ssize_t,
    )
    cpdef bint has_empty_key(self) except -1

    @cython.locals(size=int64_t)
    cpdef object widest_headers(self, int64_t limit)

    @cython.locals(
        found=list, text=bytes, ends="const loose_int32*", fields=HeaderFields, row=Py_ssize_t, begin=Py_ssize_t,
        end=Py_ssize_t, has_ttls=bint, has_rollups=bint, is_bad=bint, ttl=int64_t, rollup=int, rollup_row=Py_ssize_t,
    )
    cpdef object asked(self)

    @cython.locals(
        out=bytearray, target="unsigned char*", text=bytes, ends="const loose_int32*", fields=HeaderFields, row=Py_ssize_t,
        begin=Py_ssize_t, end=Py_ssize_t, ttl=int64_t, lifetime_us=int64_t,
    )
    cpdef bytearray lifetimes_us(self, int64_t least_us, int64_t shortest_us, int64_t longest_us)

    @cython.locals(
        out=bytearray, target="unsigned char*", text=bytes, ends="const loose_int32*", fields=HeaderFields, row=Py_ssize_t,
        begin=Py_ssize_t, end=Py_ssize_t,
    )
    cpdef bytearray rollups(self)

    @cython.locals(ends=Py_ssize_t, text=Py_ssize_t)
    cpdef tuple subjects(self)

    @cython.locals(number=int)
    cdef Py_ssize_t _place(self, int column, int part) except -1

    @cython.locals(number=int)
    cdef Py_ssize_t _size(self, int column, int part) except -1

    cdef const loose_int32* _ends(self, int column) except NULL

    @cython.locals(begin=Py_ssize_t)
    cdef bytes _bytes(self, int column, int part)


cpdef object copied(object message)

@cython.locals(out="unsigned char*")
cpdef object put_numbers(bytearray message, Py_ssize_t at, int64_t first, int64_t step, Py_ssize_t count)

@cython.locals(one=bytes, pattern="const unsigned char*", size=Py_ssize_t, names_first=bint)
cdef bint _is_taken(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, list patterns) except -1
