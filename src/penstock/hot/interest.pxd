# C types for interest.py.
cimport cython
from libc.stdint cimport int64_t
from penstock.hot cimport memory

cdef int64_t _TOKENS_MAX
cdef Py_ssize_t _SHAPES_MAX
cdef Py_ssize_t _LINE_BYTES_MAX
cdef Py_ssize_t _SIZE_DIGITS_MAX
cdef Py_ssize_t _IN_LINE
cdef unsigned char _LF
cdef unsigned char _CR
cdef unsigned char _SPACE
cdef unsigned char _STAR
cdef unsigned char _DOT
cdef unsigned char _GREATER
cdef Py_ssize_t _GROUPS_BYTES_MAX
cdef Py_ssize_t _REGROUPED_MAX
cdef bytes _ADDED
cdef bytes _REMOVED
cdef bytes _LMSG
cdef bytes _RMSG
cdef bytes _HMSG
cdef int64_t _NO_SHAPE
cdef int64_t _TOO_LONG

@cython.final
cdef class InterestKeys:
    cdef readonly set keys
    cdef readonly dict shapes
    cdef readonly dict watched
    cdef readonly dict groups
    cdef readonly list regrouped
    cdef public bint all_regrouped
    cdef readonly list lost
    cdef readonly list lines
    cdef readonly Py_ssize_t size_bytes
    cdef readonly Py_ssize_t untracked
    cdef readonly bint queues_untracked
    cdef readonly Py_ssize_t skip_bytes
    cdef readonly Py_ssize_t keys_max
    cdef readonly Py_ssize_t size_bytes_max

cpdef Py_ssize_t scan_interest(object buffer, Py_ssize_t start, Py_ssize_t end, InterestKeys sink) except -1

@cython.locals(
    text="const unsigned char*",
    data_end=Py_ssize_t,
    position=Py_ssize_t,
    line_end=Py_ssize_t,
    is_added=bint,
    is_removed=bint,
)
cdef Py_ssize_t _scan(bytes data, InterestKeys sink) except -1

@cython.locals(
    text="const unsigned char*",
    subject_end=Py_ssize_t,
    key_end=Py_ssize_t,
    has_queue=bint,
    has_room=bint,
    key=bytes,
    shape=int64_t,
    size=Py_ssize_t,
)
cdef object _add(bytes data, Py_ssize_t begin, Py_ssize_t end, InterestKeys sink)

@cython.locals(key=bytes, subject_end=Py_ssize_t, shape=int64_t)
cdef object _remove(bytes data, Py_ssize_t begin, Py_ssize_t end, InterestKeys sink)

@cython.locals(groups=bytes, joined=bytes)
cdef object _group_came(bytes subject, bytes group, InterestKeys sink)

@cython.locals(groups=bytes, left=bytes)
cdef object _group_went(bytes subject, bytes group, InterestKeys sink)

cdef object _regrouped(bytes subject, InterestKeys sink)

@cython.locals(
    text="const unsigned char*",
    stars=int64_t,
    count=int64_t,
    has_rest=bint,
    is_single=bint,
    token=Py_ssize_t,
    token_end=Py_ssize_t,
)
cdef int64_t _shape(bytes data, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(size=int64_t)
cdef Py_ssize_t _payload_bytes(bytes data, Py_ssize_t position, Py_ssize_t end) except -1

@cython.locals(rest=Py_ssize_t, line_end=Py_ssize_t, taken=Py_ssize_t)
cdef Py_ssize_t _skip(bytes data, Py_ssize_t position, InterestKeys sink) except -1
