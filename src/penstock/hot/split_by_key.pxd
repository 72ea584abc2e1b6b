# C types for shares.py.
cimport cython
from libc.stdint cimport int32_t, int64_t
from penstock.hot cimport memory, places, unwrap
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.headers cimport HeaderFields
from penstock.hot.keymap cimport KeyMap
from penstock.hot.unwrap cimport OpenedEnvelopes

cdef unsigned char _DOT

@cython.final
cdef class _Shares:
    cdef readonly list found
    cdef MessageGroup _group
    cdef KeyMap _key_map
    cdef Py_ssize_t _token
    cdef Py_ssize_t _keyless
    cdef bytes _wanted
    cdef HeaderFields _fields
    cdef bytearray _scratch
    cdef OpenedEnvelopes _opened
    cdef bint _has_envelopes

    @cython.locals(
        group=MessageGroup, out=MessageGroup, numbers="int32_t*", row=Py_ssize_t, at=Py_ssize_t, place=Py_ssize_t,
        marks="const unsigned char*",
    )
    cdef int part(self) except -1

    @cython.locals(
        came=MessageGroup, group=MessageGroup, fields=HeaderFields, at=Py_ssize_t, subject=Py_ssize_t, subject_end=Py_ssize_t,
        headers=Py_ssize_t,
    )
    cdef int64_t _place_of(self, Py_ssize_t row) except -1

    @cython.locals(dot=Py_ssize_t)
    cdef int64_t _by_token(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(scratch=bytearray)
    cdef int64_t _by_encoded(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(subject=bytes, block=bytes, fields=HeaderFields, place=Py_ssize_t, out=MessageGroup)
    cpdef object pass_on(self, object message)

@cython.locals(shares=_Shares)
cpdef list split_by_key(MessageGroup group, KeyMap key_map, Py_ssize_t token, bytes wanted, Py_ssize_t keyless=*)
