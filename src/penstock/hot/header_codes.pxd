# C types for header_codes.py.
cimport cython
from libc.stdint cimport int32_t

from penstock.hot cimport cells, load, memory
from penstock.hot.load cimport loose_int32

cdef unsigned char _CR
cdef unsigned char _LF
cdef unsigned char _SPACE
cdef unsigned char _TAB

@cython.final
cdef class HeaderCodes:
    cdef list _names
    cdef list _known
    cdef object _other

    @cython.locals(
        codes=bytearray, text="const unsigned char*", size=Py_ssize_t, valid="const unsigned char*",
        ends="const loose_int32*", row=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t,
    )
    cpdef bytearray read(self, object validity, object offsets, object data, Py_ssize_t first, Py_ssize_t count)

    @cython.locals(code=int32_t, seen=int, line=Py_ssize_t, line_end=Py_ssize_t, place=int, name=bytes)
    cdef int32_t _code(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(value=bytes, known=dict, number=object)
    cdef int32_t _number(self, int place, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t _line_end(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept
