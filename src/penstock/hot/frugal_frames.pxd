# C types for frugal_frames.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport memory

cdef bytes _CORRELATION_ID
cdef bytes _OPERATION_ID
cdef bytes _TIMEOUT
cdef Py_ssize_t _HEAD_BYTES
cdef int64_t _BLOCK_BYTES_MAX
cdef Py_ssize_t _OPERATION_ID_DIGITS_MAX
cdef Py_ssize_t _TIMEOUT_DIGITS_MAX

@cython.locals(
    cid=bytes, more=bytes, own=dict, block=bytes, digits=Py_ssize_t, timeout_digits=Py_ssize_t, block_bytes=Py_ssize_t,
    frame=bytes, out="unsigned char*", at=Py_ssize_t,
)
cpdef bytes write_frame(str correlation_id, uint64_t operation_id, int64_t timeout_ms, dict others, bytes message)

@cython.locals(pieces=list, name=str, value=str, text=bytes)
cdef bytes _block_of(dict headers)

cdef bytes _size(int64_t size)

cdef void _put_size(unsigned char* out, Py_ssize_t at, Py_ssize_t size) noexcept

cdef Py_ssize_t _put_text(unsigned char* out, Py_ssize_t at, bytes text) except -1

@cython.locals(
    others=dict, text="const unsigned char*", size=int64_t, block_bytes=int64_t, end=Py_ssize_t, at=Py_ssize_t,
    name=Py_ssize_t, name_end=Py_ssize_t, value=Py_ssize_t, operation_id=int64_t, timeout_ms=int64_t,
)
cpdef tuple read_frame(bytes frame)

@cython.locals(size=int64_t)
cdef int64_t _read_size(const unsigned char* text, Py_ssize_t at) noexcept
