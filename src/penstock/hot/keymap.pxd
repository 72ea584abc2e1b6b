# C types for keymap.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from penstock.hot cimport keyhash, load
from penstock.hot.load cimport loose_int32

cdef uint64_t _MASK
cdef uint64_t _MIX_1
cdef uint64_t _MIX_2
cdef Py_ssize_t _COUNTS_MAX
cdef int64_t _PARTITIONS_MAX

@cython.final
cdef class KeyMap:
    cdef readonly int64_t partitions
    cdef uint64_t _counts[16]
    cdef Py_ssize_t _versions
    cdef bint _by_range
    cdef list _bounds
    cdef list _owners

    cpdef int64_t partition_of(self, bytes key) except -1

    @cython.locals(
        text=bytes, data="const unsigned char*", numbers="const loose_int32*", found=bytearray, rows=Py_ssize_t,
        row=Py_ssize_t,
    )
    cpdef object partitions_of(self, object keys, object ends)

    @cython.locals(hashed=uint64_t, place=uint64_t, there=uint64_t, version=Py_ssize_t, counts="uint64_t*")
    cdef int64_t place(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t, owner=int64_t)
    cdef int64_t _in_range(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.locals(held=list, bounds=list)
cpdef KeyMap key_map_of(object config, object counts=*, Py_ssize_t version=*)

cdef uint64_t _mix(uint64_t value) noexcept

@cython.locals(other="const unsigned char*", size=Py_ssize_t, common=Py_ssize_t, at=Py_ssize_t)
cdef bint _is_below(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, bytes bound) except -1
