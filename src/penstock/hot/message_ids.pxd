# C types for message_ids.py.
cimport cython
from libc.stdint cimport int64_t

cdef Py_ssize_t _KEPT_BYTES_MAX
cdef bytes _LONG

@cython.final
cdef class RemoteMessageIds:
    cdef Py_ssize_t _ids_max
    cdef dict _places
    cdef object _order
    cdef readonly int64_t forgotten

    @cython.locals(order=list, kept=list)
    cpdef int gather(self, int64_t partition, list found) except -1

    cpdef tuple find(self, bytes data, Py_ssize_t begin, Py_ssize_t end)

    cpdef int expire(self, int64_t before_us) except -1

    cpdef int shrink(self, Py_ssize_t count) except -1

    @cython.locals(kept=list)
    cpdef int forget_below(self, int64_t partition, int64_t start) except -1

    @cython.locals(key=bytes, place=tuple)
    cdef int _forget_first(self) except -1

@cython.final
cdef class MessageIds:
    cdef Py_ssize_t _ids_max
    cdef dict _offsets
    cdef object _order
    cdef object _places
    cdef object _ends
    cdef object _times_us
    cdef bytes _last
    cdef int64_t _last_offset
    cdef bytes _written
    cdef int64_t _written_offset
    cdef readonly RemoteMessageIds elsewhere
    cdef readonly int64_t forgotten

    cpdef int know(self, RemoteMessageIds elsewhere) except -1

    @cython.locals(offset=object)
    cpdef int64_t find(self, bytes data, Py_ssize_t begin, Py_ssize_t end) except -2

    cpdef tuple find_elsewhere(self, bytes data, Py_ssize_t begin, Py_ssize_t end)

    cpdef bint is_of(self, int64_t offset, bytes data, Py_ssize_t begin, Py_ssize_t end) except -1

    cpdef int add(self, bytes data, Py_ssize_t begin, Py_ssize_t end, int64_t offset) except -1

    cdef int _add(self, bytes key, int64_t offset) except -1

    cpdef int stamp(self, int64_t timestamp_us, int64_t end) except -1

    @cython.locals(row=Py_ssize_t, key=bytes)
    cpdef int note(self, list found, int64_t base_offset, int64_t timestamp_us) except -1

    @cython.locals(row=Py_ssize_t, key=bytes, offset=int64_t, timestamp_us=int64_t)
    cpdef int note_before(self, list found, object offsets, object timestamps_us, int64_t start) except -1

    @cython.locals(end=int64_t)
    cpdef int expire(self, int64_t before_us) except -1

    @cython.locals(key=bytes)
    cdef int _forget_first(self) except -1

    cpdef int forget_below(self, int64_t start) except -1

    cpdef int forget_elsewhere(self, int64_t partition, int64_t start) except -1

    @cython.locals(key=bytes)
    cpdef int cut(self, int64_t end) except -1

cpdef bytes key_of(bytes data, Py_ssize_t begin, Py_ssize_t end)
