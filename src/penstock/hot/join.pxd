# C types for join.py.
cimport cython
from libc.stdint cimport int64_t

from penstock.hot cimport load, numbers, splice
from penstock.hot.message cimport MessageChecker

cdef Py_ssize_t _SIZE_DIGITS
cdef Py_ssize_t _COUNT_DIGITS
cdef Py_ssize_t _FLAGS
cdef Py_ssize_t _LEADER_EPOCH
cdef Py_ssize_t _BASE_OFFSET
cdef Py_ssize_t _END_OFFSET
cdef Py_ssize_t _MIN_TIMESTAMP
cdef Py_ssize_t _MAX_TIMESTAMP
cdef Py_ssize_t _PRODUCER_ID
cdef Py_ssize_t _RUN_ID
cdef bytes _NO_RUN
cdef int _COMPRESSION_MASK
cdef Py_ssize_t _COLUMNS_OF_BYTES
cdef Py_ssize_t _FIRST_OF_BYTES
cdef Py_ssize_t _FIRST_BUFFER_OF_BYTES


cdef class Joiner:
    cdef MessageChecker _checker
    cdef Py_ssize_t _header_position
    cdef Py_ssize_t _nodes_position
    cdef Py_ssize_t _buffers_position
    cdef Py_ssize_t _body_position
    cdef int _compression_shift

    @cython.locals(
        begins=list, rows=int64_t, taken=int64_t, first=int64_t, stop=int64_t, length=Py_ssize_t,
        text="const unsigned char*", size=int64_t, count=int64_t,
        flags=int64_t, min_timestamp_us=int64_t, max_timestamp_us=int64_t, compression=int,
    )
    cpdef object gather(
        self, object raw, Py_ssize_t position, int64_t base_offset, object wanted, int64_t rows_max,
        int64_t bytes_max, int64_t message_bytes_max, int64_t leader_epoch=*, int64_t flags_known=*,
    )

    @cython.locals(
        text="const unsigned char*", rows=int64_t, offsets=bytearray, timestamps=bytearray, row=int64_t, count=int64_t,
        begin=Py_ssize_t, number=int, columns=list,
    )
    cpdef object join(self, object raw, object gathered)

    @cython.locals(
        text="const unsigned char*", rows=int64_t, numbers_of_rows=bytearray, row=int64_t, count=int64_t,
        begin=Py_ssize_t, number=int, found=list,
    )
    cpdef object join_some(self, object raw, object gathered, object wanted)

    @cython.locals(
        node=Py_ssize_t, buffer=int, rows=int64_t, data_bytes=int64_t, null_count=int64_t, begin=Py_ssize_t,
        validity=bytearray, value_offsets=bytearray, data=bytearray, row=int64_t, count=int64_t, place=Py_ssize_t,
        size=int64_t,
    )
    cdef object _column(self, const unsigned char* text, object gathered, int number)

    @cython.locals(offsets=Py_ssize_t, timestamps=Py_ssize_t, mistake=int)
    cdef bint _numbers_are_wrong(
        self, object raw, const unsigned char* text, Py_ssize_t begin, int64_t count, tuple fields,
    ) except -1

    cdef Py_ssize_t _place(self, const unsigned char* text, Py_ssize_t begin, int buffer) noexcept

    cdef int64_t _size(self, const unsigned char* text, Py_ssize_t begin, int buffer) noexcept

    @cython.locals(
        length=Py_ssize_t, position=Py_ssize_t, last=Py_ssize_t, text="const unsigned char*", size=int64_t,
    )
    cpdef Py_ssize_t last(self, object raw)


cdef bint _is_alike(tuple fields, int64_t leader_epoch, int64_t flags_known) except -1
