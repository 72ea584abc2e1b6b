# C types for subject_table.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from penstock.hot cimport load, memory, places
from penstock.hot.load cimport loose_int32, loose_int64
from penstock.hot.message_group cimport MessageGroup
from penstock.hot.siphash cimport SipHash

cdef Py_ssize_t _SLOT
cdef Py_ssize_t _LAST
cdef Py_ssize_t _COUNT
cdef int64_t _COMPLETE
cdef int64_t _COUNT_MAX
cdef uint64_t _SIGNLESS
cdef int64_t _SLOTS_MIN
cdef int64_t _SLOTS_FREE

@cython.final
cdef class TableBudget:
    cdef readonly int64_t slots
    cdef readonly int64_t slots_max

@cython.final
cdef class SubjectTable:
    cdef readonly int64_t known_from
    cdef readonly bint counts
    cdef int64_t _half
    cdef TableBudget _budget
    cdef SipHash _hash
    cdef bytearray _newer
    cdef bytearray _newer_counts
    cdef int64_t _newer_from
    cdef int64_t _end
    cdef int64_t _written_end
    cdef int64_t _count
    cdef int64_t _mask
    cdef bytearray _older
    cdef bytearray _older_counts
    cdef int64_t _older_count
    cdef int64_t _older_mask
    cdef bytearray _noted
    cdef bytearray _noted_counts
    cdef Py_ssize_t _noted_count
    cdef Py_ssize_t _at

    cpdef int64_t find(self, bytes data, Py_ssize_t begin, Py_ssize_t end) except -2

    cpdef int64_t count(self, bytes data, Py_ssize_t begin, Py_ssize_t end) except? -1

    @cython.locals(number=int64_t, newer="unsigned char*")
    cpdef int complete(self, bytes data, Py_ssize_t begin, Py_ssize_t end, int64_t below) except -1

    cpdef int restart(self, bytes data, Py_ssize_t begin, Py_ssize_t end) except -1

    @cython.locals(
        text="const unsigned char*", numbers="int32_t*", row=Py_ssize_t, at=Py_ssize_t, after=Py_ssize_t,
        begin=Py_ssize_t, size=Py_ssize_t,
    )
    cpdef int note(self, MessageGroup group, Py_ssize_t start, Py_ssize_t end, int64_t base_offset) except -1

    @cython.locals(offsets=bytearray)
    cpdef int note_column(self, object ends, object data, Py_ssize_t count, int64_t base_offset) except -1

    cpdef object take(self, object ends, object data, object offsets, Py_ssize_t begin, Py_ssize_t end)

    @cython.locals(offsets=bytearray)
    cpdef object count_each(self, object ends, object data, Py_ssize_t count, int64_t base_offset)

    @cython.locals(
        count=Py_ssize_t, text_ends="const loose_int32*", row_offsets="const loose_int64*", first=Py_ssize_t, text=bytes,
        subjects="const unsigned char*", out=bytearray, target="unsigned char*", row=Py_ssize_t,
        number=int64_t,
    )
    cdef object _take(
        self, object ends, object data, object offsets, Py_ssize_t begin, Py_ssize_t end, bint counts
    )

    cpdef int written(self) except -1

    @cython.locals(noted="unsigned char*", newer="unsigned char*", at=Py_ssize_t, slot=Py_ssize_t, before=int64_t)
    cpdef int take_back(self) except -1

    @cython.locals(
        newer="unsigned char*", older="unsigned char*", low=uint64_t, high=uint64_t, found=uint64_t,
    )
    cdef int64_t _find(self) noexcept

    @cython.locals(low=uint64_t, high=uint64_t, number=int64_t, slot=Py_ssize_t, older=int64_t)
    cdef int64_t _counted(self) noexcept

    cdef Py_ssize_t _older_slot(self) noexcept

    @cython.locals(number=int64_t, slot=Py_ssize_t, before=int64_t, newer="unsigned char*", noted="unsigned char*", at=Py_ssize_t)
    cdef int64_t _put(self, int64_t offset) except -1

    cdef int64_t _slots(self) noexcept

    cdef int _begin(self, int64_t slots) except -1

    @cython.locals(
        source="unsigned char*", target="unsigned char*", slots=int64_t, count=int64_t, kept=bytearray, counts=bytearray,
        number=int64_t, at=int64_t,
        last=uint64_t, low=uint64_t, high=uint64_t, slot=Py_ssize_t,
    )
    cdef int _grow(self) except -1

    @cython.locals(slots=int64_t)
    cdef int _set_aside(self) except -1

@cython.locals(at=int64_t, slot=Py_ssize_t)
cdef Py_ssize_t _slot_of(const unsigned char* table, int64_t mask, uint64_t low, uint64_t high) noexcept

cdef int _check(bytes data, Py_ssize_t begin, Py_ssize_t end) except -1

cdef int _check_counts(SubjectTable table) except -1
