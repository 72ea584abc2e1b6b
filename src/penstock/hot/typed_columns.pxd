# C types for typed_columns.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.hot cimport cells, load, memory
from penstock.hot.load cimport loose_int32

cdef int64_t _CELLS_PER_BYTE
cdef int64_t _FREE_CELLS
cdef int _FIRST_ROOM
cdef int _UUID_SIZE
cdef bytes _EMPTY
cdef int _SCHEMA_ID_SIZE


@cython.final
cdef class Column:
    cdef readonly int kind
    cdef readonly list children
    cdef readonly Py_ssize_t below
    cdef readonly int64_t id
    cdef readonly int wire
    cdef readonly int flags
    cdef readonly bint is_needed
    cdef readonly bytes filling
    cdef readonly bytes name
    cdef readonly dict places
    cdef readonly Py_ssize_t width
    cdef readonly bint has_offsets
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t room
    cdef readonly Py_ssize_t data_size
    cdef Py_ssize_t data_room
    cdef readonly int64_t cells
    cdef public Py_ssize_t chosen
    cdef bytearray valid_store
    cdef bytearray values_store
    cdef bytearray data_store
    cdef unsigned char* valid
    cdef unsigned char* values
    cdef unsigned char* data

    cpdef int reserve(self, Py_ssize_t room) except -1

    cdef int _widen(self, Py_ssize_t more) except -1

    @cython.locals(child=Column)
    cpdef int reserve_rows(self, Py_ssize_t rows) except -1

    cdef int grow(self) except -1

    @cython.locals(room=Py_ssize_t)
    cdef int reserve_data(self, Py_ssize_t size) except -1

    @cython.locals(size=Py_ssize_t)
    cdef int add_bytes(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(size=Py_ssize_t)
    cdef int add_uuid(self, const unsigned char* text, Py_ssize_t at) except -1

    cdef int add_number(self, int64_t number) except -1

    cdef int add_real(self, double real) except -1

    cdef int add_swapped(self, const unsigned char* text, Py_ssize_t at) except -1

    cdef int add_fixed(self, const unsigned char* text, Py_ssize_t at) except -1

    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, is_negative=bint, bounds=bytes)
    cdef int add_decimal(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(child=Column, place=Py_ssize_t)
    cpdef int add_null(self) except -1

    @cython.locals(first=Column)
    cdef int close_list(self) except -1

    cdef int close_struct(self) except -1

    @cython.locals(column=Column)
    cdef Column child(self, Py_ssize_t place)

    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, column=Column)
    cdef Py_ssize_t place_of(self, int64_t id) except -2

    @cython.locals(child=Column, end=Py_ssize_t)
    cpdef int truncate(self, Py_ssize_t count) except -1

    cpdef Py_ssize_t nulls(self) except -1

    cpdef bytearray validity(self)

    @cython.locals(size=Py_ssize_t)
    cpdef tuple buffers(self)


cdef class RowReader:
    cdef readonly Column root
    cdef const unsigned char* text
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef int64_t cells_left
    cdef public bint has_schema_id
    cdef public list trail
    cdef readonly Py_ssize_t refused_at

    @cython.locals(
        reasons=bytearray, target="unsigned char*", root=Column, size=Py_ssize_t, valid="const unsigned char*",
        ends="const loose_int32*", row=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, kept=Py_ssize_t, reason=int,
    )
    cpdef bytearray read(self, object validity, object offsets, object data, Py_ssize_t first, Py_ssize_t count)

    @cython.locals(is_many=bint, place=Py_ssize_t)
    cdef int blame(self, int reason, Column parent, Column column) except -1

    cdef int _row(self) except -1
