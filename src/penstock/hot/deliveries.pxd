# C types for deliveries.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from penstock.hot cimport load, memory, subjects
from penstock.hot.load cimport loose_int32, loose_int64

cdef int _TOOK_ALL
cdef int _EXHAUSTED
cdef int _NO_ROOM
cdef int _TOO_LARGE
cdef int _TOO_EARLY
cdef int _FULL
cdef int _LOW
cdef bytes _HEADERS_BEGIN
cdef bytes _HEADERS_END
cdef bytes _SIZE_HEADER
cdef bytes _LMSG
cdef bytes _HMSG
cdef bytes _LINE_END
cdef int64_t _NEVER

@cython.locals(found="const loose_int32*")
cdef int _check(bytes ends, Py_ssize_t size, Py_ssize_t count) except -1

@cython.final
cdef class DecodedRows:
    cdef readonly int64_t begin_offset
    cdef readonly int64_t end_offset
    cdef readonly Py_ssize_t count
    cdef readonly bytes offsets
    cdef bytes times
    cdef bytes subject_ends
    cdef bytes subjects
    cdef bytes value_ends
    cdef bytes values
    cdef bytes header_ends
    cdef bytes headers
    cdef bytes skipped

    cpdef Py_ssize_t size_bytes(self) except -1

    cpdef object skip(self, bytes skipped)

    @cython.locals(offsets="const loose_int64*", low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cpdef Py_ssize_t row_of(self, int64_t offset) except -1

@cython.final
cdef class Filter:
    cdef readonly list patterns
    cdef public int64_t seen

    @cython.locals(
        found=int64_t, skipped="const unsigned char*", is_masked=bint, ends="const loose_int32*", row=Py_ssize_t,
    )
    cpdef int64_t count(self, DecodedRows rows, int64_t offset) except -1

    @cython.locals(one=bytes, pattern="const unsigned char*")
    cdef bint covers(self, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.final
cdef class Cursor:
    cdef public Filter filter
    cdef bytes prefix
    cdef bytes head
    cdef bytes tail
    cdef public int64_t next_offset
    cdef public int64_t last_offset
    cdef public int64_t last_us
    cdef public int64_t delivered
    cdef public int64_t delivered_us
    cdef public int64_t pending
    cdef public int64_t messages_left
    cdef public int64_t bytes_left
    cdef public int64_t room
    cdef public int64_t low_room
    cdef public int64_t due_us
    cdef public bint headers_only
    cdef public int64_t payload_max
    cdef readonly bytes wanted
    cdef Py_ssize_t wanted_at
    cdef Py_ssize_t wanted_count
    cdef readonly int64_t resume_offset
    cdef readonly int stop

    cpdef object want(self, bytes wanted, int64_t resume_offset)

    @cython.locals(offsets="const loose_int64*")
    cpdef int64_t next_wanted(self) except -1

    cpdef object to(self, bytes inbox, bytes group)

    cpdef int fill(self, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us) except -1

    @cython.locals(
        count=Py_ssize_t, offsets="const loose_int64*", times="const loose_int64*", subject_ends="const loose_int32*",
        value_ends="const loose_int32*", header_ends="const loose_int32*", has_headers=bint,
        subject_text="const unsigned char*", value_text="const unsigned char*", header_text="const unsigned char*",
        skipped="const unsigned char*", is_masked=bint, is_cut=bint, head="const unsigned char*", tail="const unsigned char*",
        prefix="const unsigned char*", lmsg="const unsigned char*", hmsg="const unsigned char*",
        line_end="const unsigned char*", headers_begin="const unsigned char*", size_header="const unsigned char*",
        row=Py_ssize_t, offset=int64_t, time_us=int64_t, subject_begin=Py_ssize_t, subject_size=Py_ssize_t,
        value_begin=Py_ssize_t, value_size=Py_ssize_t, header_begin=Py_ssize_t, header_size=Py_ssize_t,
        block_size=Py_ssize_t, told_size=Py_ssize_t, pending=int64_t, reply_size=Py_ssize_t, size=int64_t,
        need=Py_ssize_t, at=Py_ssize_t, target="unsigned char*",
    )
    cdef int _fill(self, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us) except -1

cdef bint _is_block(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(number=Py_ssize_t, total=Py_ssize_t, cursor=Cursor)
cpdef Py_ssize_t deliver(
    list cursors, Py_ssize_t first, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us, list stopped
) except -1
