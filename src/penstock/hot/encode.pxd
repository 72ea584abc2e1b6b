cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t
from penstock.hot cimport memory, places
from penstock.hot.message_group cimport MessageGroup

cdef int64_t _COLUMN_BYTES_MAX
cdef int64_t _OFFSET_MAX
cdef int64_t _EPOCH_MAX
cdef bytes _NO_RUN
cdef Py_ssize_t _COLUMNS
cdef Py_ssize_t _BUFFERS
cdef int64_t _FLAGS_MAX
cdef Py_ssize_t _FLAGS_DIGITS
cdef Py_ssize_t _SIZE_DIGITS
cdef Py_ssize_t _CRC_DIGITS
cdef Py_ssize_t _COUNT_DIGITS
cdef Py_ssize_t _EPOCH_DIGITS
cdef Py_ssize_t _BASE_DIGITS
cdef Py_ssize_t _END_DIGITS
cdef Py_ssize_t _MIN_TIME_DIGITS
cdef Py_ssize_t _MAX_TIME_DIGITS

@cython.final
cdef class Encoder:
    cdef bytes _template
    cdef Py_ssize_t _body_length
    cdef Py_ssize_t _header
    cdef Py_ssize_t _rows
    cdef Py_ssize_t _nodes
    cdef Py_ssize_t _buffers
    cdef int _version

    @cython.locals(
        count=Py_ssize_t, message=bytearray, out="unsigned char*", size=Py_ssize_t, header=Py_ssize_t, crc=uint32_t,
        version=int, end_offset=int64_t,
    )
    cpdef tuple encode(
        self,
        MessageGroup group,
        Py_ssize_t start,
        Py_ssize_t end,
        int64_t base_offset,
        int64_t timestamp_us,
        int64_t leader_epoch,
        int64_t flags,
    )

    @cython.locals(
        count=Py_ssize_t,
        numbers="int32_t*",
        text_bytes=int64_t,
        row=Py_ssize_t,
        at=Py_ssize_t,
        body=Py_ssize_t,
        per_column=Py_ssize_t,
        message=bytearray,
        out="unsigned char*",
        position=Py_ssize_t,
    )
    cdef bytearray _fill(self, MessageGroup group, Py_ssize_t start, Py_ssize_t end, int64_t base_offset, int64_t timestamp_us)

    @cython.locals(
        out="unsigned char*",
        body=Py_ssize_t,
        buffer=Py_ssize_t,
        count=Py_ssize_t,
        numbers="int32_t*",
        nulls=Py_ssize_t,
        row=Py_ssize_t,
        size=Py_ssize_t,
        offsets=Py_ssize_t,
        at=Py_ssize_t,
        source="const unsigned char*",
        begin=Py_ssize_t,
        stop=Py_ssize_t,
    )
    cdef Py_ssize_t _fill_column(
        self,
        bytearray message,
        Py_ssize_t position,
        Py_ssize_t column,
        MessageGroup group,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t place,
    ) except -1

    cdef void _note(self, unsigned char* out, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t nulls) noexcept

    cdef void _place(self, unsigned char* out, Py_ssize_t buffer, Py_ssize_t position, Py_ssize_t size) noexcept

cdef Py_ssize_t _padded(Py_ssize_t size) noexcept
