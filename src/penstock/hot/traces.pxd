# C types for traces.py.
cimport cython
from libc.stdint cimport int32_t

from penstock.hot cimport memory, places
from penstock.hot.message_group cimport MessageGroup

cdef bytes _NAME
cdef Py_ssize_t _VALUE_BYTES
cdef Py_ssize_t _LAST_FLAG
cdef unsigned char _LINE_END
cdef unsigned char _SMALL
cdef unsigned char _CAPITAL
cdef unsigned char _SPACE
cdef bytes _ODD

@cython.locals(
    text="const unsigned char*",
    numbers="int32_t*",
    row=Py_ssize_t,
    at=Py_ssize_t,
    value=Py_ssize_t,
    found=list,
)
cpdef list sampled(MessageGroup group, Py_ssize_t limit)

@cython.locals(at=Py_ssize_t, is_name=bint)
cdef Py_ssize_t _value(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(flag="unsigned char")
cdef bint _is_sampled(const unsigned char* text, Py_ssize_t value) noexcept
