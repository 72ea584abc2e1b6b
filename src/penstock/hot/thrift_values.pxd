# C types for thrift_values.py.
cimport cython
from libc.stdint cimport int64_t

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
cdef int _SHAPES_KEPT
cdef int _KEY_CHARS_MAX
cdef dict _NAMES
cdef dict _BITS
cdef object _is_uuid


@cython.final
cdef class Shape:
    cdef readonly int kind
    cdef readonly object struct
    cdef readonly str name
    cdef int64_t low
    cdef int64_t high
    cdef bint is_binary
    cdef bint is_filled
    cdef bint is_union
    cdef Shape element
    cdef Shape other
    cdef list names
    cdef list shapes
    cdef list required
    cdef list places

    @cython.locals(needed=object)
    cdef int fill(self) except -1

    @cython.locals(kind=int)
    cdef str misfit(self, object value, int depth)

    @cython.locals(count=Py_ssize_t, place=Py_ssize_t, name=str, shape=Shape, found=str)
    cdef str _struct_misfit(self, object value, int depth)

    cdef str union_misfit(self, list given)

    cdef str _string_misfit(self, object value)

    @cython.locals(number=int64_t)
    cdef str _integer_misfit(self, object value)

    cdef str _range_misfit(self, object number)

    cdef str _double_misfit(self, object value)

    @cython.locals(shape=Shape, place=Py_ssize_t, found=str, fits=bint)
    cdef str _elements_misfit(self, object value, int depth)

    @cython.locals(shape=Shape, other=Shape, found=str)
    cdef str _map_misfit(self, object value, int depth)

    cdef str _other_type(self, object value)


@cython.locals(shape=Shape)
cpdef Shape shape_of(int kind, object arguments)

cpdef str find_misfit(Shape shape, object value)

cpdef str name_of(int kind)
