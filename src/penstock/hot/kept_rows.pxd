# C types for kept_rows.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from penstock.hot cimport load, memory, places
from penstock.hot.direct_answers cimport time_text
from penstock.hot.load cimport loose_int32, loose_int64
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.subject_table cimport SubjectTable

cdef int _DOT
cdef unsigned char _QUOTE
cdef unsigned char _BACKSLASH
cdef unsigned char _BLANK
cdef Py_ssize_t _PLACES
cdef Py_ssize_t _ROOM_BYTES
cdef Py_ssize_t _PIECE_BYTES
cdef int64_t _ENTRY_BYTES
cdef int _NODES
cdef int _BUFFERS
cdef int _OFFSETS
cdef int _TIMESTAMPS
cdef int _FIRST
cdef int _NUMBERS
cdef bytes _NAME
cdef bytes _NAME_END
cdef bytes _NOT_FOUND
cdef bytes _TOO_LARGE
cdef bytes _FIRST_LINE
cdef bytes _HPUB
cdef bytes _SPACE
cdef bytes _LINE_END
cdef bytes _PUB
cdef int _CERTAIN
cdef int _AT
cdef int _UNKNOWN

@cython.final
cdef class KeptRow:
    cdef readonly object owner
    cdef readonly object identity
    cdef readonly bytes subject
    cdef readonly int64_t end
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_us
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly bytes headers
    cdef public bint is_used
    cdef public int64_t size_bytes
    cdef bytes _head

    cpdef object put(self, int64_t offset, int64_t timestamp_us, bytes key, bytes value, bytes headers)

    @cython.locals(own=bytes)
    cpdef bytes head(self, bytes stream)

@cython.final
cdef class KeptRows:
    cdef readonly int64_t size_bytes
    cdef int64_t _bytes_max
    cdef dict _of
    cdef dict _order

    cpdef object of(self, object owner)

    @cython.locals(rows=dict, before=KeptRow)
    cpdef object keep(self, KeptRow one)

    @cython.locals(rows=dict)
    cpdef object drop(self, KeptRow one)

    @cython.locals(
        rows=dict, metadata=bytes, body=Py_ssize_t, count=Py_ssize_t, nodes="const loose_int64*",
        buffers="const loose_int64*", offsets="const loose_int64*", times="const loose_int64*",
        ends="const loose_int32*", subjects=Py_ssize_t, row=Py_ssize_t, begin=Py_ssize_t, size=Py_ssize_t, one=KeptRow,
    )
    cpdef object store(self, object owner, object identity, object data, object layout)

    @cython.locals(
        metadata=bytes, body=Py_ssize_t, count=Py_ssize_t, nodes="const loose_int64*", buffers="const loose_int64*",
        offsets="const loose_int64*", times="const loose_int64*", ends="const loose_int32*", subjects=Py_ssize_t,
        number=Py_ssize_t, offset=int64_t, low=Py_ssize_t, high=Py_ssize_t, row=Py_ssize_t, name=bytes, one=KeptRow,
    )
    cpdef object keep_rows(
        self, object owner, object identity, int64_t end, object data, object layout, list wanted, list names
    )

    @cython.locals(size=int64_t)
    cdef object _measure(self, KeptRow one)

    @cython.locals(oldest=KeptRow)
    cdef object _evict(self)

@cython.locals(
    key=bytes, value=bytes, headers=bytes, column=int, nulls=int64_t, at=Py_ssize_t, validity=bytes,
    bounds="const loose_int32*", place=Py_ssize_t, cell=bytes,
)
cdef object _take_row(
    KeptRow one, object view, Py_ssize_t body, const loose_int64* nodes, const loose_int64* buffers, Py_ssize_t count,
    Py_ssize_t row, int64_t offset, int64_t time_us
)

@cython.final
cdef class SubjectGets:
    cdef readonly bytes stream
    cdef readonly Py_ssize_t count
    cdef bytearray places

    cpdef Py_ssize_t row(self, Py_ssize_t number) except -1

    @cython.locals(found=SubjectGets, number=Py_ssize_t)
    cpdef SubjectGets only(self, list numbers)

    @cython.locals(at=Py_ssize_t)
    cpdef bytes subject(self, MessageGroup group, Py_ssize_t number)

cpdef bytes answer_head(bytes stream, bytes subject, bytes own, int64_t sequence, int64_t time_us)

@cython.locals(
    found=dict, others=list, text="const unsigned char*", numbers="int32_t*", gets=SubjectGets, row=Py_ssize_t,
    at=Py_ssize_t, stream_begin=Py_ssize_t, prefix=bytes, subject_end=Py_ssize_t, stream_end=Py_ssize_t,
    value=Py_ssize_t, value_end=Py_ssize_t, subject=Py_ssize_t, stream=bytes, place=Py_ssize_t, target="unsigned char*",
)
cpdef tuple sort_gets(MessageGroup group, Py_ssize_t begin, Py_ssize_t end, list prefixes)

@cython.locals(at=Py_ssize_t, place=Py_ssize_t)
cdef Py_ssize_t _named_subject(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cpdef int kept_state(KeptRow kept, int64_t last, int64_t known_from, object identity) except -1

@cython.locals(
    text="const unsigned char*", numbers="int32_t*", stream=bytes, pieces=list, others=list, known_from=int64_t,
    message=bytearray, at=Py_ssize_t, number=Py_ssize_t, place="unsigned char*", row=Py_ssize_t, subject=Py_ssize_t,
    subject_end=Py_ssize_t, one=KeptRow, last=int64_t, head=bytes, value=bytes, reply=Py_ssize_t, reply_end=Py_ssize_t,
    size=Py_ssize_t, out="unsigned char*",
)
cpdef tuple answer_kept(
    SubjectGets gets, MessageGroup group, dict kept, SubjectTable table, object identity, int64_t begin, int64_t end,
    int64_t payload_max
)

@cython.locals(
    text="const unsigned char*", numbers="int32_t*", size=Py_ssize_t, row=Py_ssize_t, at=Py_ssize_t, message=bytearray,
    out="unsigned char*", written=Py_ssize_t, reply=Py_ssize_t, reply_end=Py_ssize_t, subject=Py_ssize_t,
    subject_end=Py_ssize_t, others=list, headers=Py_ssize_t, headers_end=Py_ssize_t,
)
cpdef tuple refuse_rows(
    MessageGroup group, Py_ssize_t begin, Py_ssize_t end, list prefixes, list statuses, bytes block, bytes error,
    bytes probe
)

@cython.locals(one=bytes)
cdef bint _begins_with_one(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, list wanted) except -1

cdef Py_ssize_t _put_answer(
    unsigned char* out, Py_ssize_t at, const unsigned char* text, Py_ssize_t reply, Py_ssize_t reply_end,
    const unsigned char* head, Py_ssize_t head_bytes, const unsigned char* value, Py_ssize_t value_bytes
) noexcept

cdef Py_ssize_t _put(
    unsigned char* out, Py_ssize_t at, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end
) noexcept
