# C types for deliveries.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport cells, keyhash, load, memory, subjects
from penstock.hot.pending cimport PendingTable
from penstock.hot.load cimport loose_int32, loose_int64

cdef int _TOOK_ALL
cdef int _EXHAUSTED
cdef int _NO_ROOM
cdef int _TOO_EARLY
cdef int _FULL
cdef int _LOW
cdef int _PENDING_FULL
cdef int _ORDER_KEY
cdef int _ORDER_SUBJECT
cdef int _ORDER_TOKEN_FIRST
cdef uint64_t _HASH_MASK
cdef int _DOT
cdef bytes _HEADERS_BEGIN
cdef bytes _HEADERS_END
cdef bytes _SIZE_HEADER
cdef bytes _LARGE_HEADER
cdef bytes _LMSG
cdef bytes _HMSG
cdef bytes _LINE_END
cdef int64_t _NEVER

@cython.final
cdef class Texts:
    cdef tuple held
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size_bytes
    cdef const loose_int32* bounds
    cdef const unsigned char* text

    cdef Py_ssize_t size(self, Py_ssize_t row) noexcept

@cython.final
cdef class DecodedRows:
    cdef readonly int64_t begin_offset
    cdef readonly int64_t end_offset
    cdef readonly Py_ssize_t count
    cdef readonly bytes offsets
    cdef bytes held
    cdef const loose_int64* numbers
    cdef const loose_int64* times
    cdef Texts subjects
    cdef Texts values
    cdef Texts headers
    cdef bint has_headers
    cdef Texts keys
    cdef readonly bint has_keys
    cdef bytes skipped
    cdef readonly int64_t delivered
    cdef readonly int64_t cut

    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t size_bytes(self) except -1

    @cython.locals(text="const unsigned char*", begin=Py_ssize_t, end=Py_ssize_t, left=int, dot=Py_ssize_t)
    cpdef int64_t key_hash(self, Py_ssize_t row, int order) except -1

    cpdef object skip(self, bytes skipped)

    @cython.locals(marks="const unsigned char*")
    cdef bint is_skipped(self, Py_ssize_t row) except -1

    @cython.locals(low=Py_ssize_t, high=Py_ssize_t, middle=Py_ssize_t)
    cpdef Py_ssize_t row_of(self, int64_t offset) except -1

    @cython.locals(headers=Texts, size=Py_ssize_t, is_block=bint)
    cdef Py_ssize_t block_size(self, Py_ssize_t row) except -1

@cython.final
cdef class Filter:
    cdef readonly list patterns
    cdef public int64_t seen

    @cython.locals(found=int64_t, row=Py_ssize_t)
    cpdef int64_t count(self, DecodedRows rows, int64_t offset) except -1

    @cython.locals(one=bytes, pattern="const unsigned char*")
    cdef bint covers(self, Texts texts, Py_ssize_t row) except -1

@cython.final
cdef class Pull:
    cdef readonly bytes inbox
    cdef bytes head
    cdef bytes tail
    cdef public int64_t batch
    cdef public int64_t bytes_left
    cdef public int64_t expires_us
    cdef public int64_t heartbeat_us
    cdef readonly int64_t received_us
    cdef public int64_t beat_us
    cdef readonly int64_t delivered
    cdef public bint has_limit
    cdef public bint no_wait
    cdef readonly bint is_too_small

    cpdef int64_t due_us(self) except? -1

    cdef bint _takes(self, int64_t size) noexcept

    cdef bint _took(self, int64_t size, int64_t now_us) noexcept

@cython.final
cdef class Cursor:
    cdef public Filter filter
    cdef bytes prefix
    cdef public object pulls
    cdef public list finished
    cdef Pull current
    cdef public int64_t next_offset
    cdef public int64_t last_offset
    cdef public int64_t last_us
    cdef public int64_t delivered
    cdef public int64_t delivered_us
    cdef public int64_t pending
    cdef public int64_t messages_left
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
    cdef Py_ssize_t out_end
    cdef readonly PendingTable table
    cdef bint is_again
    cdef bint is_blocked
    cdef Py_ssize_t again
    cdef int64_t count
    cdef int64_t token

    cpdef object attach(self, PendingTable table, bytes prefix)

    cpdef object want(self, bytes wanted, int64_t resume_offset)

    @cython.locals(offsets="const loose_int64*")
    cpdef int64_t next_wanted(self) except -1

    cpdef int fill(self, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us) except -1

    @cython.locals(table=PendingTable, stop=int)
    cpdef int fill_again(self, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us) except -1

    @cython.locals(row=Py_ssize_t, stop=int)
    cdef int _fill(self, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us) except -1

    @cython.locals(offset=int64_t, is_wanted=bint)
    cdef Py_ssize_t _next_row(self, DecodedRows rows, Py_ssize_t row) except -1

    @cython.locals(
        block_size=Py_ssize_t, value_size=Py_ssize_t, kept_size=Py_ssize_t, is_cut=bint, is_large=bint, pending=int64_t, reply_size=Py_ssize_t,
        size=Py_ssize_t, need=Py_ssize_t, at=Py_ssize_t, target="unsigned char*", pull=Pull,
    )
    cdef int _send(
        self, DecodedRows rows, Py_ssize_t row, bytearray out, Py_ssize_t bytes_max, int64_t now_us
    ) except -1

    cdef object _drop(self)

    @cython.locals(count=int64_t, pull=Pull)
    cdef int _widen(self, bytearray out, Py_ssize_t need, int64_t rows_left, Py_ssize_t bytes_max) except -1

    @cython.locals(size=Py_ssize_t)
    cdef Py_ssize_t _reply_size(self, DecodedRows rows, Py_ssize_t row, int64_t pending) except -1

    @cython.locals(pull=Pull)
    cdef Py_ssize_t _put_line(
        self, unsigned char* target, Py_ssize_t at, DecodedRows rows, Py_ssize_t row, int64_t pending,
        Py_ssize_t block_size, Py_ssize_t size,
    ) except -1

    cdef int _sent(self, DecodedRows rows, Py_ssize_t row, Py_ssize_t frame_size, int64_t now_us) except -1

    @cython.locals(table=PendingTable, index=Py_ssize_t, offset=int64_t, row=Py_ssize_t)
    cdef Py_ssize_t _next_again(self, DecodedRows rows) except -1

    @cython.locals(table=PendingTable, key_hash=int64_t)
    cdef bint _parks(self, DecodedRows rows, Py_ssize_t row) except -1

    @cython.locals(table=PendingTable)
    cdef int _number(self, DecodedRows rows, Py_ssize_t row) except -1

    @cython.locals(table=PendingTable, pending=int64_t)
    cdef int64_t _pending_behind(self) except -1

    @cython.locals(table=PendingTable)
    cdef int _enter(self, DecodedRows rows, Py_ssize_t row, int64_t now_us) except -1

@cython.locals(value=uint64_t)
cdef int64_t _hash(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _cut_size(Py_ssize_t kept_size, Py_ssize_t value_size, bint is_large) except -1

cdef Py_ssize_t _put_cut_block(
    unsigned char* target, Py_ssize_t at, DecodedRows rows, Py_ssize_t row, Py_ssize_t kept_size, bint is_large
) except -1

cdef Py_ssize_t _put_text(
    unsigned char* target, Py_ssize_t at, Texts texts, Py_ssize_t row, Py_ssize_t size
) except -1

cdef bint _is_block(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(number=Py_ssize_t, total=Py_ssize_t, cursor=Cursor)
cpdef Py_ssize_t deliver(
    list cursors, Py_ssize_t first, DecodedRows rows, bytearray out, Py_ssize_t bytes_max, int64_t now_us, list stopped
) except -1
