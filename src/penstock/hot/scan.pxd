cimport cython
from libc.stdint cimport int64_t
from penstock.hot cimport memory
from penstock.hot.message_group cimport MessageGroup

cdef int64_t _GROUP_MASK
cdef Py_ssize_t _SIZE_DIGITS_MAX
cdef Py_ssize_t _SID_DIGITS_MAX
cdef Py_ssize_t _LINE_BYTES_MAX
cdef Py_ssize_t _FRAME_BYTES_MAX
cdef Py_ssize_t _PAYLOAD_BYTES_MAX
cdef Py_ssize_t _HEADERS_BYTES_MAX
cdef Py_ssize_t _REPLY_BYTES_MAX
cdef Py_ssize_t _LINE_REST_BYTES
cdef Py_ssize_t _IN_SUBJECT
cdef Py_ssize_t _IN_REST
cdef unsigned char _LF
cdef unsigned char _CR
cdef unsigned char _SPACE
cdef unsigned char _ZERO
cdef bytes _LINE_END
cdef bytes _MSG
cdef bytes _HMSG

@cython.final
cdef class Frames:
    cdef readonly dict groups
    cdef readonly list lines
    cdef readonly Py_ssize_t needed_bytes
    cdef readonly Py_ssize_t skip_bytes
    cdef readonly Py_ssize_t skipped
    cdef readonly bytes skipped_line
    cdef readonly Py_ssize_t unanswerable

cpdef Py_ssize_t scan(object buffer, Py_ssize_t start, Py_ssize_t end, Frames sink) except -1

@cython.locals(
    text="const unsigned char*",
    data_end=Py_ssize_t,
    last_group=int64_t,
    group=MessageGroup,
    position=Py_ssize_t,
    line_limit=Py_ssize_t,
    line_end=Py_ssize_t,
    has_cr=bint,
    has_headers=bint,
    subject=Py_ssize_t,
    subject_end=Py_ssize_t,
    reply=Py_ssize_t,
    reply_end=Py_ssize_t,
    number=int64_t,
    header_size=int64_t,
    size=int64_t,
    payload=Py_ssize_t,
    value=Py_ssize_t,
    value_end=Py_ssize_t,
    kept_end=Py_ssize_t,
    headers=Py_ssize_t,
    headers_end=Py_ssize_t,
)
cdef Py_ssize_t _scan(bytes data, Frames sink) except -1

@cython.locals(
    text="const unsigned char*",
    sid=Py_ssize_t,
    second=Py_ssize_t,
    third=Py_ssize_t,
    fourth=Py_ssize_t,
    digits=Py_ssize_t,
    size=int64_t,
    header_size=int64_t,
    reply=Py_ssize_t,
    reply_end=Py_ssize_t,
    number=int64_t,
)
cdef (Py_ssize_t, Py_ssize_t, Py_ssize_t, int64_t, int64_t, int64_t) _fields(
    bytes data, Py_ssize_t subject, Py_ssize_t line_end, bint has_headers
) noexcept

cdef bint _is_answerable(bytes data, Py_ssize_t reply, Py_ssize_t reply_end) noexcept

cdef bint _takes_line(bytes data, Py_ssize_t position, Py_ssize_t line_end, Frames sink) except -1

cdef Py_ssize_t _skip_strange(bytes data, Py_ssize_t position, Py_ssize_t subject, Frames sink) except -1

@cython.locals(rest=Py_ssize_t, taken=Py_ssize_t, end=Py_ssize_t)
cdef Py_ssize_t _skip(bytes data, Py_ssize_t position, Frames sink) except -1

@cython.locals(line_end=Py_ssize_t, digits=Py_ssize_t, size=int64_t)
cdef Py_ssize_t _skip_line(bytes data, Py_ssize_t position, Frames sink) except -1

cdef MessageGroup _group(bytes data, int64_t sid, Frames sink)
