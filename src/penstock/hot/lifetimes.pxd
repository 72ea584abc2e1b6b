# C types for lifetimes.py.
cimport cython
from libc.stdint cimport int64_t

from penstock.hot cimport memory

cdef int64_t _TTL_S_MAX
cdef int64_t _S_NS
cdef int64_t _NS_MAX
cdef Py_ssize_t _DIGITS_MAX
cdef int64_t _FRACTION_MAX
cdef bytes _NEVER
cdef bytes _SUB
cdef bytes _ALL
cdef bytes _MICRO_SIGN
cdef bytes _GREEK_MU
cdef unsigned char _ZERO
cdef unsigned char _NINE
cdef unsigned char _DOT
cdef unsigned char _PLUS
cdef unsigned char _LOWER
cdef unsigned char _H
cdef unsigned char _M
cdef unsigned char _N
cdef unsigned char _S
cdef unsigned char _U

@cython.locals(first=Py_ssize_t, seconds=int64_t)
cdef int64_t ttl_s(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef int rollup(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(letters="const unsigned char*", at=Py_ssize_t)
cdef bint _is_word(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, bytes word) noexcept

@cython.locals(
    begin=Py_ssize_t, whole=int64_t, digits=Py_ssize_t, fraction=int64_t, scale=double, unit=int64_t, part=int64_t,
    total=int64_t,
)
cdef int64_t _duration_ns(const unsigned char* text, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(size=Py_ssize_t, first="unsigned char")
cdef int64_t _unit_ns(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef bint _is_digit(unsigned char byte) noexcept
