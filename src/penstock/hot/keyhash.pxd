# C types for keyhash.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport load

cdef uint64_t _MASK
cdef uint64_t _PRIME_1
cdef uint64_t _PRIME_2
cdef uint64_t _PRIME_3
cdef uint64_t _PRIME_4
cdef uint64_t _PRIME_5

cpdef uint64_t xxh64(bytes key) except? 0

cpdef int64_t partition_of(bytes key, int64_t partitions) except -1

@cython.locals(
    at=Py_ssize_t, value=uint64_t, lane_1=uint64_t, lane_2=uint64_t, lane_3=uint64_t, lane_4=uint64_t,
)
cdef uint64_t hash_of(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef uint64_t _round(uint64_t lane, uint64_t word) noexcept
cdef uint64_t _merge(uint64_t value, uint64_t lane) noexcept
cdef uint64_t _left(uint64_t value, int bits) noexcept
