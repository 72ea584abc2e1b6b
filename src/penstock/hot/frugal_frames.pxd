# C types for frugal_frames.py.
cimport cython
from libc.stdint cimport int64_t


@cython.locals(name=str, value=str, encoded_name=bytes, encoded=bytes, pieces=list)
cpdef bytes encode_block(dict headers)

cdef bytes _size(int64_t size)

@cython.locals(
    headers=dict, text="const unsigned char*", at=Py_ssize_t, size=int64_t, name=Py_ssize_t, name_end=Py_ssize_t,
    value=Py_ssize_t,
)
cpdef dict decode_block(bytes frame, Py_ssize_t start, Py_ssize_t end)
