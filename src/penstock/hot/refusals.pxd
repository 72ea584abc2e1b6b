# C types for refusals.py.
cimport cython
from libc.stdint cimport int32_t, int64_t
from penstock.hot cimport envelope_acks, headers, memory, places, subjects
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.classification cimport RefusedMessage

cdef int _UNSUPPORTED
cdef int _BAD_SUBJECT
cdef int _ELSEWHERE
cdef int _MISTYPED
cdef int _KINDS
cdef dict _ACK_ERRORS
cdef unsigned char _NUMBER
cdef unsigned char _SPACE
cdef bytes _PUB
cdef bytes _LINE_END
cdef bytes _JETSTREAM_ACKED

@cython.locals(
    out=bytearray,
    text=bytes,
    numbers="int32_t*",
    known=list,
    one=RefusedMessage,
    at=Py_ssize_t,
    bodies=dict,
    body=bytes,
    told=bytes,
    tail=bytes,
)
cpdef bytes answers(MessageGroup group, list refused, object body_of, Py_ssize_t quotes_max, bytes ack_head)

@cython.locals(at=Py_ssize_t)
cpdef bytes quoted_of(MessageGroup group, RefusedMessage one)

@cython.locals(out=bytearray, text="const unsigned char*", begin=Py_ssize_t, end=Py_ssize_t)
cpdef bytes answers_alike(bytes replies, bytes body)

@cython.locals(
    body_text="const unsigned char*",
    pub_text="const unsigned char*",
    line_end="const unsigned char*",
    target="unsigned char*",
    mark=Py_ssize_t,
    size=Py_ssize_t,
    at=Py_ssize_t,
)
cdef int _answer(
    bytearray out, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, bytes body, int64_t number
) except -1
