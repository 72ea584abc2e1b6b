cimport cython
from penstock.hot cimport memory

cdef Py_ssize_t _SUBJECT_BYTES_MAX
cdef tuple _RESERVED
cdef unsigned char _DOT
cdef unsigned char _STAR
cdef unsigned char _GREATER
cdef unsigned char _DELETE
cdef bytes _JETSTREAM_ACK

@cython.locals(token=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t, byte="unsigned char")
cdef bint is_plain(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

cdef bint _is_wildcard(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(size=Py_ssize_t, place=Py_ssize_t, first="unsigned char", code="unsigned int")
cdef Py_ssize_t _character(const unsigned char* text, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(at=Py_ssize_t, size=Py_ssize_t)
cdef bint is_text(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.locals(prefix=bytes)
cdef bint is_reserved(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

cpdef bint is_jetstream_ack(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(at=Py_ssize_t, place=Py_ssize_t)
cdef bint covers(
    const unsigned char* pattern, Py_ssize_t size, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end
) noexcept
