cimport cython
from penstock.hot cimport objects


cdef class Row:
    cdef public object offset
    cdef public object partition
    cdef public object timestamp_us
    cdef public object subject
    cdef public object key
    cdef public object value
    cdef public object header_block
    cdef public object _parsed


@cython.locals(number=Py_ssize_t, row=Row, found=list)
cpdef list rows(
    type kind,
    object partition,
    list offsets,
    list timestamps_us,
    list subjects,
    list keys,
    list values,
    list header_blocks,
)
