# See load.py. No function here checks bounds.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from *:
    """
    #include <stdint.h>
    #define penstock_ones(bits) __builtin_popcount((unsigned int)(bits))

    /* Numbers that may lie at any address: a message begins where it came to lie in what was read. */
    typedef int32_t penstock_loose_int32 __attribute__((aligned(1), may_alias));
    typedef int64_t penstock_loose_int64 __attribute__((aligned(1), may_alias));
    """
    ctypedef int32_t loose_int32 "penstock_loose_int32"
    ctypedef int64_t loose_int64 "penstock_loose_int64"
    int penstock_ones(unsigned int bits) noexcept nogil


cdef inline bytes head(object data, Py_ssize_t size):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return PyBytes_FromStringAndSize(<const char*>view.buf, min(size, view.len))
    finally:
        PyBuffer_Release(&view)


cdef inline bytes zeroed(bytes text, Py_ssize_t at):
    cdef bytes out = PyBytes_FromStringAndSize(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    memset(PyBytes_AS_STRING(out) + at, 48, 8)
    return out


cdef inline bytearray copied(object data):
    cdef Py_buffer view
    cdef bytearray out
    cdef char* target
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        out = PyByteArray_FromStringAndSize(NULL, view.len)
        target = PyByteArray_AS_STRING(out)
        with nogil:
            memcpy(target, view.buf, view.len)
        return out
    finally:
        PyBuffer_Release(&view)


cdef inline void put_int64s(
    unsigned char* target, Py_ssize_t at, int64_t first, int64_t step, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t place
    for place in range(at, at + 8 * count, 8):
        memcpy(target + place, &first, 8)
        first += step


cdef inline bint same(
    const unsigned char* one, const unsigned char* other, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    return memcmp(one + begin, other + begin, end - begin) == 0


cdef inline bint equal(const unsigned char* text, Py_ssize_t one, Py_ssize_t other, Py_ssize_t size) noexcept nogil:
    return memcmp(text + one, text + other, size) == 0


cdef inline const loose_int64* int64s(const unsigned char* text, Py_ssize_t at, Py_ssize_t count) noexcept nogil:
    return <const loose_int64*>(text + at)


cdef inline uint32_t uint32(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, text + at, 4)
    return value


cdef inline uint64_t uint64(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, text + at, 8)
    return value


cdef inline void put_int32(unsigned char* target, Py_ssize_t at, int32_t value) noexcept nogil:
    memcpy(target + at, &value, 4)


# The caller holds `view` for as long as it uses the pointer. A typed memoryview would do the same, but Cython puts
# 20,000 lines of C into every module that includes this file, even where nothing calls it.
cdef inline const unsigned char* _within(object view, Py_ssize_t at, Py_ssize_t count, Py_ssize_t width) except NULL:
    cdef Py_buffer buffer
    cdef const unsigned char* begin
    cdef Py_ssize_t size
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    begin, size = <const unsigned char*>buffer.buf, buffer.len
    PyBuffer_Release(&buffer)
    if at < 0 or count <= 0 or count > (size - at) // width:
        raise IndexError("numbers beyond the end")
    return begin + at


cdef inline const loose_int32* int32s(object view, Py_ssize_t at, Py_ssize_t count) except NULL:
    return <const loose_int32*>_within(view, at, count, 4)


cdef inline const loose_int64* int64s_within(object view, Py_ssize_t at, Py_ssize_t count) except NULL:
    return <const loose_int64*>_within(view, at, count, 8)


cdef inline bint rises(const loose_int64* numbers, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t place
    cdef unsigned int found = 0
    for place in range(1, count):
        found |= numbers[place] <= numbers[place - 1]
    return not found


cdef inline bint goes_back(const loose_int64* numbers, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t place
    cdef unsigned int found = 0
    for place in range(1, count):
        found |= numbers[place] < numbers[place - 1]
    return found


cdef inline bint falls(const loose_int32* numbers, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t place
    cdef unsigned int found = 0
    # No early exit, so that the compiler can vectorise the loop.
    for place in range(1, count):
        found |= numbers[place] < numbers[place - 1]
    return found


cdef inline int64_t widest(const loose_int32* ends, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t place
    cdef int32_t found = 0
    for place in range(1, count):
        found = max(found, ends[place] - ends[place - 1])
    return found


cdef inline int64_t widest_pair(
    const loose_int32* ends, const loose_int32* other_ends, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t place
    cdef int64_t found = 0, step
    for place in range(1, count):
        step = <int64_t>(ends[place] - ends[place - 1]) + (other_ends[place] - other_ends[place - 1])
        found = max(found, step)
    return found


cdef inline Py_ssize_t ones(const unsigned char* bits, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t place, found = 0
    for place in range(count >> 3):
        found += penstock_ones(bits[place])
    if count & 7:
        found += penstock_ones(bits[count >> 3] & ((1 << (count & 7)) - 1))
    return found


cdef inline uint64_t hex_number(const unsigned char* text, Py_ssize_t at, Py_ssize_t digits) noexcept nogil:
    cdef uint64_t value = 0
    cdef Py_ssize_t place
    for place in range(at, at + digits):
        # The low half of a digit's byte is its value, or that of a letter less 9.
        value = value << 4 | <uint64_t>((text[place] & 15) + 9 * (text[place] >> 6))
    return value


cdef inline int hex_spelling(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef unsigned char other = 0, upper = 0, is_digit, is_lower, is_upper
    cdef Py_ssize_t place
    for place in range(begin, end):
        is_digit = <unsigned char>(text[place] - 48) < 10
        is_lower = <unsigned char>(text[place] - 97) < 6
        is_upper = <unsigned char>(text[place] - 65) < 6
        other |= not (is_digit | is_lower | is_upper)
        upper |= is_upper
    return 0 if other else 1 if upper else 2
