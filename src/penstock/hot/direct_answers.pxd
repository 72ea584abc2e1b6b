# C types for direct_answers.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from penstock.hot cimport load, memory
from penstock.hot.load cimport loose_int32, loose_int64

cdef Py_ssize_t _SUBJECT
cdef Py_ssize_t _VALUE
cdef Py_ssize_t _HEADERS
cdef Py_ssize_t _OFFSETS
cdef Py_ssize_t _TIMESTAMPS
cdef Py_ssize_t _BUFFERS
cdef int64_t _DAY_US
cdef unsigned char _ZERO
cdef unsigned char _DASH
cdef unsigned char _COLON
cdef unsigned char _DOT
cdef Py_ssize_t _TIME_BYTES
cdef bytes _FIRST_LINE
cdef bytes _STREAM
cdef bytes _SUBJECT_LINE
cdef bytes _SEQUENCE
cdef bytes _TIME
cdef bytes _PENDING
cdef bytes _LAST
cdef bytes _END
cdef bytes _HPUB
cdef bytes _PUB
cdef bytes _NOT_FOUND
cdef bytes _TOO_LARGE
cdef bytes _NO_BUFFERS
cdef Py_ssize_t _ADDED_BYTES
cdef Py_ssize_t _ADDED_IN_BATCHES_BYTES
cdef Py_ssize_t _ROOM_BYTES

@cython.locals(
    count=int64_t, buffers="const loose_int64*", body=Py_ssize_t, offsets="const loose_int64*",
    times="const loose_int64*", subject_ends="const loose_int32*", value_ends="const loose_int32*",
    header_ends="const loose_int32*", subjects=Py_ssize_t, values=Py_ssize_t, headers=Py_ssize_t, size=Py_ssize_t,
    number=Py_ssize_t, row=Py_ssize_t, message=bytearray, out="unsigned char*", text="const unsigned char*",
    time_text=bytearray, time_out="unsigned char*", stream_text="const unsigned char*", stream_bytes=Py_ssize_t,
    not_found="const unsigned char*", too_large="const unsigned char*", at=Py_ssize_t, sent=Py_ssize_t,
    counted=int64_t, reply=bytes, reply_text="const unsigned char*", subject_bytes=Py_ssize_t,
    value_bytes=Py_ssize_t, own_bytes=Py_ssize_t, sequence=int64_t, time_bytes=Py_ssize_t, header_bytes=Py_ssize_t,
)
cpdef tuple direct_answers(
    bytes data, object layout, bytes stream, list replies, list rows, int64_t pending, int64_t last, int64_t bytes_max,
    int64_t payload_max, bint has_headers
)

@cython.locals(
    days=int64_t, rest=int64_t, era=int64_t, of_era=int64_t, year_of_era=int64_t, of_year=int64_t, shifted=int64_t,
    day=int64_t, month=int64_t, year=int64_t, seconds=int64_t, at=Py_ssize_t,
)
cdef Py_ssize_t put_time(unsigned char* out, int64_t time_us) noexcept

@cython.locals(text=bytearray)
cpdef bytes time_text(int64_t time_us)

@cython.locals(place=Py_ssize_t)
cdef void _put_digits(unsigned char* out, Py_ssize_t at, int64_t value, Py_ssize_t digits) noexcept

cdef Py_ssize_t _put(
    unsigned char* out, Py_ssize_t at, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end
) noexcept

cdef Py_ssize_t _put_head(
    unsigned char* out, Py_ssize_t at, const unsigned char* reply, Py_ssize_t reply_bytes, Py_ssize_t header_bytes,
    Py_ssize_t value_bytes
) noexcept

cdef Py_ssize_t _put_status(
    unsigned char* out, Py_ssize_t at, const unsigned char* reply, Py_ssize_t reply_bytes,
    const unsigned char* status, Py_ssize_t status_bytes
) noexcept
