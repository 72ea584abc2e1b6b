# C types for envelope_acks.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t
from penstock.hot cimport load, memory
from penstock.hot.message_group cimport MessageGroup

cdef Py_ssize_t _HEAD_BYTES
cdef int _EARLY
cdef int _TO_INBOX
cdef int _POLICY
cdef unsigned char _SPACE
cdef bytes _PUB
cdef bytes _LINE_END
cdef bytes _HEADER
cdef unsigned char _MSG_SUBJECT
cdef unsigned char _OFFSET
cdef unsigned char _ACK_INBOX
cdef unsigned char _CORRELATION_ID
cdef unsigned char _ACK_POLICY
cdef unsigned char _RECEPTION
cdef int64_t _NS_PER_US

@cython.final
cdef class EnvelopeWaiter:
    cdef Py_ssize_t row, target, subject, correlation, next
    cdef bint is_early, to_inbox
    cdef int policy

    cdef int read(self, const unsigned char* text, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(at=Py_ssize_t, head="unsigned char*")
cdef int keep(
    bytearray out,
    Py_ssize_t row,
    const unsigned char* text,
    Py_ssize_t target,
    Py_ssize_t target_end,
    Py_ssize_t subject,
    Py_ssize_t subject_end,
    Py_ssize_t correlation,
    Py_ssize_t correlation_end,
    bint is_early,
    bint to_inbox,
    int policy,
) except -1

@cython.locals(
    kept=bytes, text="const unsigned char*", out=bytearray, one=EnvelopeWaiter, at=Py_ssize_t, place=Py_ssize_t,
    target="unsigned char*",
)
cpdef bytes waiting(MessageGroup group, Py_ssize_t start, Py_ssize_t end, bint is_early)

@cython.locals(text="const unsigned char*", one=EnvelopeWaiter, at=Py_ssize_t, count=Py_ssize_t)
cpdef Py_ssize_t waiting_count(bytes records) except -1

@cython.locals(out=bytearray, text="const unsigned char*", one=EnvelopeWaiter, at=Py_ssize_t)
cpdef bytes acks(bytes records, bytes head, int64_t base_offset, int64_t timestamp_us, bytes tail)

cpdef bytes error_tail(int error, bytes body)

cpdef bytes head(bytes stream, bytes partition_subject)

@cython.locals(got=tuple)
cpdef bytes standing_tail(int64_t partition, int64_t leader_epoch, int64_t replicas, bint fsynced)

@cython.locals(out=bytearray)
cdef bytes _varint(uint64_t value)

@cython.locals(out=bytearray, text="const unsigned char*", one=EnvelopeWaiter, at=Py_ssize_t)
cpdef bytes refusals(bytes records, bytes head, bytes tail)

@cython.locals(
    target_bytes=Py_ssize_t, subject_bytes=Py_ssize_t, correlation_bytes=Py_ssize_t, size=Py_ssize_t, at=Py_ssize_t,
    target="unsigned char*", pub_text="const unsigned char*", line_end="const unsigned char*",
    header="const unsigned char*", head_text="const unsigned char*", tail_text="const unsigned char*",
)
cdef int _put(
    bytearray out,
    const unsigned char* text,
    EnvelopeWaiter one,
    bytes head,
    uint64_t offset,
    uint64_t reception_ns,
    bytes tail,
) except -1

cdef Py_ssize_t _put_number(unsigned char* target, Py_ssize_t at, unsigned char tag, uint64_t value) noexcept

cdef Py_ssize_t _put_bytes(
    unsigned char* target, Py_ssize_t at, unsigned char tag, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end
) noexcept

cdef Py_ssize_t _put_varint(unsigned char* target, Py_ssize_t at, uint64_t value) noexcept

cdef Py_ssize_t _varint_bytes(uint64_t value) noexcept
