# C types for passing.py.
cimport cython
from libc.stdint cimport int32_t

from penstock.hot cimport places, subjects
from penstock.hot.message_group cimport MessageGroup

cdef unsigned char _COOKIE_BYTE

@cython.locals(
    text="const unsigned char*",
    numbers="int32_t*",
    row=Py_ssize_t,
    at=Py_ssize_t,
    size=Py_ssize_t,
    subject=Py_ssize_t,
    subject_end=Py_ssize_t,
)
cpdef bint all_pass(MessageGroup group, bint acks_replies, Py_ssize_t message_bytes_max, bint skips_reserved) except -1
