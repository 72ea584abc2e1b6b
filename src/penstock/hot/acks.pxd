cimport cython
from libc.stdint cimport int32_t, int64_t
from penstock.hot cimport envelope_acks, memory, places, subjects
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.classification cimport RefusedMessage

cdef unsigned char _SPACE
cdef bytes _PUB
cdef bytes _LINE_END
cdef bytes _OFFSET
cdef bytes _JETSTREAM_BODY
cdef Py_ssize_t _DIGITS_MAX
cdef Py_ssize_t _LENGTH_DIGITS_MAX

@cython.locals(
    place=Py_ssize_t,
    numbers="int32_t*",
    size=Py_ssize_t,
    row=Py_ssize_t,
    at=Py_ssize_t,
    text=bytes,
    out="unsigned char*",
    source="const unsigned char*",
    position=Py_ssize_t,
)
cpdef bytes waiting(MessageGroup group, Py_ssize_t start, Py_ssize_t end, bint is_early)

@cython.locals(text="const unsigned char*", count=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t)
cpdef Py_ssize_t waiting_count(bytes replies) except -1

@cython.locals(
    head=bytes,
    body_bytes=Py_ssize_t,
    room=Py_ssize_t,
    message=bytearray,
    out="unsigned char*",
    text="const unsigned char*",
    head_text="const unsigned char*",
    tail_text="const unsigned char*",
    offset_text="const unsigned char*",
    pub_text="const unsigned char*",
    line_end="const unsigned char*",
    jetstream_body="const unsigned char*",
    at=Py_ssize_t,
    begin=Py_ssize_t,
    end=Py_ssize_t,
    offset=int64_t,
    size=Py_ssize_t,
)
cpdef bytes pubacks(bytes stream, bytes replies, int64_t base_offset, bytes tail)

@cython.locals(replies=list, numbers="int32_t*", one=RefusedMessage, at=Py_ssize_t)
cpdef tuple waiting_again(MessageGroup group, list found, int64_t begin, int64_t end)

@cython.locals(out=list, reply=bytes, body=bytes)
cpdef bytes pubacks_again(bytes stream, bytes replies, bytes offsets, bytes tail)

@cython.locals(one=RefusedMessage)
cpdef list enveloped_again(list found, int64_t begin, int64_t end)

cpdef bytes enveloped_pubacks_again(list found, bytes head, int64_t timestamp_us, bytes tail)
