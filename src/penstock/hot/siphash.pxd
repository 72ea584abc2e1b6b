# C types for siphash.py.
cimport cython
from libc.stdint cimport uint64_t

from penstock.hot cimport load

cdef uint64_t _MASK
cdef uint64_t _INIT_0
cdef uint64_t _INIT_1
cdef uint64_t _INIT_2
cdef uint64_t _INIT_3
cdef uint64_t _LONG
cdef uint64_t _LONG_AGAIN

@cython.final
cdef class SipHash:
    cdef uint64_t _key_0
    cdef uint64_t _key_1
    cdef readonly uint64_t low
    cdef readonly uint64_t high

    cpdef bytes digest(self, bytes text)

    @cython.locals(
        v0=uint64_t, v1=uint64_t, v2=uint64_t, v3=uint64_t, word=uint64_t, words=Py_ssize_t, step=Py_ssize_t,
        at=Py_ssize_t, rounds=int,
    )
    cdef void hash(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(word=uint64_t, at=Py_ssize_t)
cdef uint64_t _rest(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t size) noexcept

cdef uint64_t _left(uint64_t value, int bits) noexcept
