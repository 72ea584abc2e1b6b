cimport cython
from penstock.hot cimport memory

cdef tuple _REQUESTS
cdef bytes _NATS
cdef bytes _PENSTOCK
cdef bytes _NAMES
cdef Py_ssize_t _STREAM
cdef Py_ssize_t _SEQUENCE
cdef Py_ssize_t _SUBJECT_SEQUENCE
cdef Py_ssize_t _OTHER_SUBJECT
cdef Py_ssize_t _ID
cdef Py_ssize_t _LAST_ID
cdef Py_ssize_t _TTL
cdef Py_ssize_t _ROLLUP
cdef Py_ssize_t _KEY
cdef Py_ssize_t _ENCODED_KEY
cdef Py_ssize_t _ACK
cdef Py_ssize_t _TOMBSTONE
cdef Py_ssize_t _SCHEDULE_NEXT
cdef Py_ssize_t _SCHEDULER
cdef bytes _SCHEDULE
cdef Py_ssize_t _BATCH
cdef Py_ssize_t _BATCH_SEQUENCE
cdef Py_ssize_t _BATCH_COMMIT
cdef Py_ssize_t _INCR
cdef unsigned char _COLON
cdef bytes _CRLF

@cython.final
cdef class HeaderFields:
    cdef readonly Py_ssize_t ack, ack_end
    cdef readonly Py_ssize_t batch, batch_end
    cdef readonly Py_ssize_t batch_commit, batch_commit_end
    cdef readonly Py_ssize_t batch_sequence, batch_sequence_end
    cdef readonly Py_ssize_t encoded_key, encoded_key_end
    cdef readonly Py_ssize_t id, id_end
    cdef readonly Py_ssize_t incr, incr_end
    cdef readonly Py_ssize_t key, key_end
    cdef readonly Py_ssize_t last_id, last_id_end
    cdef readonly Py_ssize_t other_subject, other_subject_end
    cdef readonly Py_ssize_t rollup, rollup_end
    cdef readonly Py_ssize_t sequence, sequence_end
    cdef readonly Py_ssize_t stream, stream_end
    cdef readonly Py_ssize_t subject_sequence, subject_sequence_end
    cdef readonly Py_ssize_t tombstone, tombstone_end
    cdef readonly Py_ssize_t ttl, ttl_end
    cdef readonly bint unsupported
    cdef readonly bint is_schedule
    cdef readonly bint ends_schedule

    cdef void clear(self) noexcept

    cdef void forget_publisher(self) noexcept

    @cython.locals(line=Py_ssize_t, line_end=Py_ssize_t, colon=Py_ssize_t)
    cpdef int read(self, bytes text, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(begin=Py_ssize_t, end=Py_ssize_t, place=Py_ssize_t)
    cdef void _take(
        self, const unsigned char* text, Py_ssize_t line, Py_ssize_t colon, Py_ssize_t line_end
    ) noexcept

@cython.locals(out=bytearray, line=Py_ssize_t, line_end=Py_ssize_t, colon=Py_ssize_t)
cpdef bytes asked_for(bytes text, Py_ssize_t begin, Py_ssize_t end)

@cython.locals(at=Py_ssize_t)
cdef Py_ssize_t _line_end(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef bint _is_ours(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef bint _is_unsupported(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

@cython.locals(name=bytes)
cdef bint _is_request(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept

cdef bint _is_space(unsigned char byte) noexcept
