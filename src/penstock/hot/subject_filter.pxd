# C types for subject_filter.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport subject_search, keyhash, load
from penstock.hot.load cimport loose_int32

cdef Py_ssize_t _PAGE
cdef uint64_t _BITS
cdef int _PROBES
cdef uint64_t _MASK_32
cdef uint64_t _REMIX

cpdef int64_t page_of(bytes subject, Py_ssize_t pages) except -1

@cython.locals(bits="const unsigned char*", value=uint64_t, step=uint64_t, bit=uint64_t)
cpdef bint may_hold(bytes page, bytes subject) except -1

@cython.locals(
    out=bytearray, target="unsigned char*", row=Py_ssize_t, one=bytes, text="const unsigned char*", hashed=uint64_t,
)
cpdef bytearray hashes(list subjects)

cdef int64_t _signed(int64_t half) noexcept

@cython.locals(
    pages=Py_ssize_t, count=Py_ssize_t, found=bytearray, wrong=Py_ssize_t, row=Py_ssize_t,
)
cpdef list may_hold_each(bytes filter_bytes, bytearray wanted)

@cython.locals(pages=Py_ssize_t, wrong=Py_ssize_t)
cpdef int check_pages(bytes filter_bytes) except -1

@cython.locals(count=Py_ssize_t, found=list, number=Py_ssize_t, one=bytes, pages=Py_ssize_t)
cpdef list holding(list filters, bytearray wanted)

cpdef Py_ssize_t row_of(object ends, object text, Py_ssize_t count, bytes subject) except -1

@cython.locals(
    text=bytes, size=Py_ssize_t, bits="unsigned char*", ends="const loose_int32*", row=Py_ssize_t, begin=Py_ssize_t,
    end=Py_ssize_t, hashed=uint64_t, base=uint64_t, value=uint64_t, step=uint64_t, bit=uint64_t, at=uint64_t,
)
cpdef int add(bytearray target, Py_ssize_t pages, object offsets, object data, Py_ssize_t count) except -1
