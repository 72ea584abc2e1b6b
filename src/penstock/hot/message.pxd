# C types for message.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport load
from penstock.hot.load cimport loose_int64

cdef uint64_t _INT64_MAX
cdef Py_ssize_t _FLAGS
cdef Py_ssize_t _SIZE
cdef Py_ssize_t _CRC
cdef Py_ssize_t _COUNT
cdef int _COLUMNS
cdef int _BUFFERS
cdef int _BUFFERS_OF_NUMBERS
cdef int _NEVER_NULL
cdef int _COMPRESSION_MASK
cdef int _COMPRESSIONS
cdef uint64_t _OF_RUN
cdef uint64_t _ENDS_RUN


cdef class MessageChecker:
    cdef bytes _template
    cdef object _packing
    cdef Py_ssize_t _body_length_position
    cdef Py_ssize_t _header_position
    cdef Py_ssize_t _prefix_bytes
    cdef Py_ssize_t _rows_position
    cdef Py_ssize_t _nodes_position
    cdef Py_ssize_t _buffers_position
    cdef Py_ssize_t _body_position
    cdef Py_ssize_t _crc_position
    cdef uint64_t _header_version
    cdef uint64_t _known_flags
    cdef uint64_t _rows_max
    cdef uint64_t _size_bytes_max
    cdef tuple _templates
    cdef int _compression_shift

    @cython.locals(prefix=bytes)
    cpdef object header(self, object data)

    @cython.locals(metadata=bytes, size_bytes=int64_t, mistake=int, compression=int, template=bytes, is_plain=bint)
    cpdef object message(self, object data)

    @cython.locals(
        begin=Py_ssize_t, template="const unsigned char*", spelling=int, version=uint64_t, flags=uint64_t,
        size_bytes=uint64_t, crc=uint64_t, count=uint64_t, leader_epoch=uint64_t, base_offset=uint64_t,
        end_offset=uint64_t, min_timestamp_us=int64_t, max_timestamp_us=int64_t, producer_id=uint64_t,
        producer_epoch=uint64_t, producer_sequence=uint64_t, run_plan=uint64_t, is_run=bint,
    )
    cdef object _fields(self, const unsigned char* text)

    @cython.locals(
        nodes="const loose_int64*", places="const loose_int64*", column=int, number=int,
        kind=int, nulls=int64_t, position=int64_t, size=int64_t, exact=int64_t,
    )
    cdef int _layout_mistake(
        self, const unsigned char* text, const unsigned char* template, bint is_plain, int64_t count, int64_t body_bytes
    ) except -1
