# C types for numbers.py.
cimport cython
from libc.stdint cimport int64_t

from penstock.hot cimport load
from penstock.hot.load cimport loose_int64

cdef int _NONE
cdef int _OFFSETS
cdef int _TIMESTAMPS

@cython.locals(count=Py_ssize_t, at="const loose_int64*", when="const loose_int64*")
cpdef int number_mistake(
    object offsets, object timestamps, int64_t base_offset, int64_t end_offset, int64_t min_us, int64_t max_us,
) except -1

cdef int mistake_in(
    const loose_int64* offsets, const loose_int64* timestamps, Py_ssize_t count,
    int64_t base_offset, int64_t end_offset, int64_t min_us, int64_t max_us,
) noexcept
