cimport cython
from libc.stdint cimport int32_t
from penstock.hot cimport memory, places

cdef Py_ssize_t _ROOM_MIN
cdef Py_ssize_t _PLACE_MAX
cdef unsigned char _DOLLAR

@cython.final
cdef class MessageGroup:
    cdef readonly bytes data
    cdef readonly list too_large
    cdef readonly Py_ssize_t count
    # Private: shortening the keys would leave rows pointing beyond them.
    cdef bytearray keys
    cdef bytearray enveloped
    cdef int32_t* numbers
    cdef Py_ssize_t _room

    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t keep_key(self, bytes text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t keep_encoded_key(self, bytes text, Py_ssize_t begin, Py_ssize_t end) except -2

    cdef Py_ssize_t key_bytes(self) noexcept

    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, numbers="int32_t*")
    cpdef int add(
        self,
        Py_ssize_t subject,
        Py_ssize_t subject_end,
        Py_ssize_t reply,
        Py_ssize_t reply_end,
        Py_ssize_t headers,
        Py_ssize_t headers_end,
        Py_ssize_t value,
        Py_ssize_t value_end,
        Py_ssize_t key,
        Py_ssize_t key_end,
        Py_ssize_t early,
        Py_ssize_t early_end,
    ) except -1

    @cython.locals(last=Py_ssize_t, size=Py_ssize_t, row=Py_ssize_t, at=Py_ssize_t, numbers="int32_t*")
    cpdef Py_ssize_t batch_end(self, Py_ssize_t start, Py_ssize_t rows_max, Py_ssize_t bytes_max) except -1

    @cython.locals(out=MessageGroup, numbers="int32_t*", row=Py_ssize_t, at=Py_ssize_t)
    cpdef MessageGroup part(self, Py_ssize_t begin, Py_ssize_t end)

    @cython.locals(
        size=Py_ssize_t, text="const unsigned char*", numbers="int32_t*", row=Py_ssize_t, at=Py_ssize_t,
        begin=Py_ssize_t, end=Py_ssize_t,
    )
    cpdef drop_subject_prefix(self, bytes prefix)

    @cython.locals(out=MessageGroup, at=Py_ssize_t, row=Py_ssize_t, numbers="int32_t*")
    cpdef MessageGroup with_headers(self, dict replaced)

    @cython.locals(begin=Py_ssize_t, end=Py_ssize_t)
    cdef bytes _part(self, Py_ssize_t row, Py_ssize_t place)

cdef bint _lies_within(Py_ssize_t begin, Py_ssize_t end, Py_ssize_t size) noexcept
