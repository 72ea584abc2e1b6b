# C types for last_offsets.py.
cimport cython
from libc.stdint cimport int32_t, int64_t
from penstock.hot cimport load, places
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.message_ids cimport key_of

@cython.final
cdef class LastOffsets:
    cdef readonly int64_t known_from
    cdef Py_ssize_t _subjects_max
    cdef object _offsets
    cdef list _noted

    @cython.locals(offset=object)
    cpdef int64_t find(self, bytes data, Py_ssize_t begin, Py_ssize_t end) except -2

    @cython.locals(
        data=bytes, text="const unsigned char*", numbers="int32_t*", row=Py_ssize_t, at=Py_ssize_t, after=Py_ssize_t,
        begin=Py_ssize_t, size=Py_ssize_t,
    )
    cpdef int note(self, MessageGroup group, Py_ssize_t start, Py_ssize_t end, int64_t base_offset) except -1

    @cython.locals(offsets=object, before=object, forgotten=int64_t)
    cdef int _put(self, bytes key, int64_t offset) except -1

    cpdef int written(self) except -1

    @cython.locals(offsets=object, key=bytes, before=int64_t)
    cpdef int take_back(self) except -1

    @cython.locals(row=Py_ssize_t, key=bytes)
    cpdef int note_batch(self, list found, int64_t base_offset) except -1

    @cython.locals(own=object, row=Py_ssize_t, key=bytes, offset=int64_t)
    cpdef int gather(self, list last, object offsets, int64_t start) except -1

    @cython.locals(own=object, theirs=object, key=bytes, offset=object, forgotten=int64_t)
    cpdef int note_before(self, LastOffsets older) except -1

    @cython.locals(offsets=object)
    cpdef int expire(self, int64_t log_start) except -1
