# C types for unwrap.py.
cimport cython
from libc.stdint cimport int32_t, int64_t
from penstock.hot cimport envelope, memory, places, subjects
from penstock.hot.envelope cimport Envelope
from penstock.hot.message_group cimport MessageGroup

cdef int _VERDICT
cdef int _POLICY
cdef int _TO_INBOX
cdef int _EXPECTED
cdef int _KEY
cdef int _CORRELATION
cdef int _VALUE
cdef int _REPLY
cdef int _HEADERS
cdef int _STRIDE
cdef Py_ssize_t _CORRELATION_ID_BYTES_MAX
cdef unsigned char _COOKIE_BYTE
cdef Py_ssize_t _HEADER_BYTES
cdef unsigned char _DOLLAR
cdef unsigned char _COLON
cdef bytes _VERSION_LINE
cdef bytes _LINE_END
cdef bytes _BLANK_LINE
cdef bytes _SEPARATOR

@cython.final
cdef class OpenedEnvelopes:
    cdef readonly MessageGroup group
    cdef readonly list expected
    cdef MessageGroup _came
    cdef bytearray _blocks
    cdef int32_t* _numbers

    @cython.locals(
        came=MessageGroup, text="const unsigned char*", size=Py_ssize_t, at=Py_ssize_t, found=bint, row=Py_ssize_t,
        value=Py_ssize_t, value_end=Py_ssize_t, one=Envelope,
    )
    cdef bint open(self, Py_ssize_t first) except -1

    @cython.locals(
        numbers="int32_t*", came=MessageGroup, text="const unsigned char*", at=Py_ssize_t, place=Py_ssize_t, verdict=int,
        reply=Py_ssize_t, reply_end=Py_ssize_t, policy=int64_t, value=Py_ssize_t,
    )
    cdef int _note(self, Py_ssize_t row, Envelope one) except -1

    @cython.locals(
        came=MessageGroup, data=bytes, text="const unsigned char*", numbers="int32_t*", at=Py_ssize_t, headers=Py_ssize_t,
        headers_end=Py_ssize_t, positions=list, entries=dict, place=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t,
        value=Py_ssize_t, value_end=Py_ssize_t, blocks=bytearray, blank=Py_ssize_t, stop=Py_ssize_t,
    )
    cdef bint _merge(self, Py_ssize_t row, Envelope one) except -1

    @cython.locals(
        came=MessageGroup, numbers="int32_t*", group=MessageGroup, row=Py_ssize_t, place=Py_ssize_t, at=Py_ssize_t,
        subject=Py_ssize_t, subject_end=Py_ssize_t,
    )
    cdef int _join(self) except -1

    cdef bint holds(self, Py_ssize_t row) noexcept
    cdef int verdict(self, Py_ssize_t row) noexcept
    cdef int policy(self, Py_ssize_t row) noexcept
    cdef bint goes_to_inbox(self, Py_ssize_t row) noexcept
    @cython.locals(place=Py_ssize_t)
    cdef bint is_expected_at(self, Py_ssize_t row, int64_t offset) except -1
    cdef bint expects(self, Py_ssize_t row) except -1
    cdef Py_ssize_t key(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t key_end(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t correlation(self, Py_ssize_t row) noexcept
    cdef Py_ssize_t correlation_end(self, Py_ssize_t row) noexcept

@cython.locals(text="const unsigned char*", numbers="int32_t*", row=Py_ssize_t, at=Py_ssize_t, value=Py_ssize_t, opened=OpenedEnvelopes)
cpdef OpenedEnvelopes unwrap(MessageGroup group)

@cython.locals(at=Py_ssize_t)
cdef bint _is_name(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(at=Py_ssize_t)
cdef bint _is_line(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept
