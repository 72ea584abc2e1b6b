# C types for envelope.py.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.hot cimport subjects

cdef Py_ssize_t _HEADERS_MAX
cdef int _VERSION
cdef int _HAS_CRC
cdef int _MESSAGE
cdef int _VARINT
cdef int _FIXED64
cdef int _BYTES
cdef int _FIXED32
cdef int64_t _INT32_MAX
cdef int64_t _UINT32_MAX
cdef uint64_t _INT64_MAX
cdef uint64_t _UINT64_MAX
cdef uint64_t _FIELDS
cdef uint64_t _FIELD_MAX


cdef class Envelope:
    cdef readonly int64_t offset, timestamp, partition, ack_policy
    cdef readonly Py_ssize_t key, key_end
    cdef readonly Py_ssize_t value, value_end
    cdef readonly Py_ssize_t stream, stream_end
    cdef readonly Py_ssize_t subject, subject_end
    cdef readonly Py_ssize_t reply, reply_end
    cdef readonly Py_ssize_t ack_inbox, ack_inbox_end
    cdef readonly Py_ssize_t correlation_id, correlation_id_end
    cdef readonly list headers
    cdef Py_ssize_t _at

    @cython.locals(tag=uint64_t, field=uint64_t, kind=int, number=uint64_t, size=Py_ssize_t)
    cdef bint read(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    cdef bint _take_number(self, uint64_t field, uint64_t number) noexcept

    cdef bint _take_bytes(
        self, const unsigned char* text, uint64_t field, Py_ssize_t begin, Py_ssize_t end
    ) except -1

    @cython.locals(
        after=Py_ssize_t, name=Py_ssize_t, name_end=Py_ssize_t, value=Py_ssize_t, value_end=Py_ssize_t, tag=uint64_t,
        field=uint64_t, kind=int, size=Py_ssize_t,
    )
    cdef bint _take_header(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

    cdef bint _skip_fixed(self, int kind, Py_ssize_t end) noexcept

    @cython.locals(size=uint64_t)
    cdef Py_ssize_t _size(self, const unsigned char* text, Py_ssize_t end) noexcept

    @cython.locals(value=uint64_t, shift=int, at=Py_ssize_t, byte=uint64_t)
    cdef uint64_t _varint(self, const unsigned char* text, Py_ssize_t end) noexcept


@cython.locals(text="const unsigned char*", body=Py_ssize_t, at=Py_ssize_t, crc=uint32_t, found=Envelope)
cpdef object parse(bytes data, Py_ssize_t begin, Py_ssize_t end)

cdef int64_t _signed(uint64_t number) noexcept
@cython.locals(low=int64_t)
cdef int64_t _signed32(uint64_t number) noexcept
