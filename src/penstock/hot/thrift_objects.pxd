# C types for thrift_objects.py.
cimport cython
from libc.stdint cimport int64_t

from penstock.hot cimport cells, subjects, thrift_values
from penstock.hot.thrift_values cimport Shape

cdef int _BOOL
cdef int _BYTE
cdef int _DOUBLE
cdef int _I16
cdef int _I32
cdef int _I64
cdef int _STRING
cdef int _STRUCT
cdef int _MAP
cdef int _SET
cdef int _LIST
cdef int _UUID
cdef int _DEPTH_MAX
cdef const unsigned char* _SIZES
cdef const unsigned char* _OF_COMPACT
cdef int _VARINT_BYTES_MAX


@cython.final
cdef class ObjectCounter:
    cdef bytes text
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t limit
    cdef int64_t size
    cdef bint is_compact

    cdef int walk(self, int kind, int depth) except -1

    @cython.locals(text="const unsigned char*", byte=int, kind=int)
    cdef int _walk_struct(self, int depth) except -1

    @cython.locals(text="const unsigned char*", kind=int)
    cdef int _walk_list(self, int depth) except -1

    @cython.locals(text="const unsigned char*", kinds=int, key=int, value=int)
    cdef int _walk_map(self, int depth) except -1

    @cython.locals(_place=Py_ssize_t)
    cdef int _walk_elements(self, int kind, int other, int64_t count, int depth) except -1

    cdef int _skip(self, int64_t size) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, first=int64_t)
    cdef int _read_size(self) except -1

    @cython.locals(text="const unsigned char*", value=int64_t, byte=int64_t, place=int)
    cdef int _read_varint(self) except -1


@cython.locals(counter=ObjectCounter, is_whole=bint)
cpdef int find_excess(bytes text, int kind, Py_ssize_t limit, bint is_compact) except -1


@cython.final
cdef class FaultFinder:
    cdef ObjectCounter counter
    cdef bint only_texts

    @cython.locals(counter=ObjectCounter, kind=int, begin=Py_ssize_t)
    cdef str fault(self, Shape shape, int depth)

    @cython.locals(
        counter=ObjectCounter, found=list, number=int64_t, begin=Py_ssize_t, kind=int, place=Py_ssize_t, is_read=bint,
        inner=str, field=Shape,
    )
    cdef str _struct_fault(self, Shape shape, int depth)

    @cython.locals(counter=ObjectCounter, text="const unsigned char*", byte=int, kind=int, at=Py_ssize_t)
    cdef int _next_field(self, int64_t last) except -2

    @cython.locals(count=Py_ssize_t, place=Py_ssize_t, name=str, wanted=str)
    cdef str _missing(self, Shape shape, list found)

    @cython.locals(
        counter=ObjectCounter, begin=Py_ssize_t, kind=int, other=int, size=int64_t, element=Shape, values=Shape,
        place=int64_t, inner=str,
    )
    cdef str _elements_fault(self, Shape shape, int depth)

    @cython.locals(counter=ObjectCounter, text="const unsigned char*", first=int, other=int)
    cdef tuple _container_head(self, bint is_map)


@cython.locals(counter=ObjectCounter, found=str)
cpdef str find_fault(bytes text, Shape shape, bint is_compact, bint only_texts)
