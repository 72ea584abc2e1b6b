# C types for pending_acks.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from penstock.hot cimport memory, places
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.pending cimport PendingTable

cdef bytes _PREFIX
cdef Py_ssize_t _PREFIX_BYTES
cdef bytes _ACK_TEXT
cdef bytes _NAK_TEXT
cdef bytes _PROGRESS_TEXT
cdef bytes _TERM_TEXT
cdef int _ACK
cdef int _NAK
cdef int _IN_PROGRESS
cdef int _TERM
cdef int _OTHER
cdef int _DOT
cdef Py_ssize_t _DIGITS_MAX
cdef Py_ssize_t _NS_DIGITS_MAX
cdef Py_ssize_t _TOKEN_DIGITS

@cython.final
cdef class AckSubject:
    cdef Py_ssize_t name_begin
    cdef Py_ssize_t name_end
    cdef int64_t deliveries
    cdef int64_t offset
    cdef int64_t sequence
    cdef int64_t token

    @cython.locals(dot=Py_ssize_t, at=Py_ssize_t)
    cdef bint parse(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.locals(found=AckSubject)
cpdef ack_parts(bytes subject)

@cython.locals(
    touched=list, found=AckSubject, text="const unsigned char*", numbers="int32_t*", name=bytes, table=PendingTable,
    row=Py_ssize_t, at=Py_ssize_t, kind=int,
)
cpdef list apply_acks(MessageGroup group, Py_ssize_t begin, Py_ssize_t end, dict tables, int64_t now_us, list others)

cdef int _kind(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept
