# See splice.py. No function here checks bounds.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy


cdef inline const unsigned char* text_of(object raw) except? NULL:
    cdef Py_buffer buffer
    cdef const unsigned char* begin
    PyObject_GetBuffer(raw, &buffer, PyBUF_SIMPLE)
    begin = <const unsigned char*>buffer.buf
    PyBuffer_Release(&buffer)
    return begin


cdef inline int64_t hex_number(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    cdef uint32_t value = 0
    cdef unsigned char digit
    cdef int place
    for place in range(8):
        digit = text[at + place]
        if <unsigned char>(digit - 48) < 10:
            digit -= 48
        elif <unsigned char>(digit - 97) < 6:
            digit -= 87
        else:
            return 0
        value = value << 4 | digit
    return value


cdef inline int32_t int32(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    cdef int32_t value
    memcpy(&value, text + at, 4)
    return value


cdef inline int64_t int64(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    cdef int64_t value
    memcpy(&value, text + at, 8)
    return value


cdef inline bytearray room(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef inline void copy(
    bytearray target, Py_ssize_t to, const unsigned char* text, Py_ssize_t at, Py_ssize_t size
) noexcept:
    memcpy(PyByteArray_AS_STRING(target) + to, text + at, size)


cdef inline void copy_int32s(
    bytearray target, Py_ssize_t to, const unsigned char* text, Py_ssize_t at, Py_ssize_t count, uint32_t more
) noexcept:
    cdef unsigned char* out = <unsigned char*>PyByteArray_AS_STRING(target) + to
    cdef uint32_t value
    cdef Py_ssize_t number
    for number in range(count):
        memcpy(&value, text + at + 4 * number, 4)
        value += more
        memcpy(out + 4 * number, &value, 4)


cdef inline void copy_bits(
    bytearray target, Py_ssize_t to, const unsigned char* text, Py_ssize_t at, Py_ssize_t count
) noexcept:
    cdef unsigned char* out = <unsigned char*>PyByteArray_AS_STRING(target)
    cdef Py_ssize_t number
    for number in range(count):
        out[to + number >> 3] |= (text[at + (number >> 3)] >> (number & 7) & 1) << (to + number & 7)


cdef inline void set_bits(bytearray target, Py_ssize_t to, Py_ssize_t count) noexcept:
    cdef unsigned char* out = <unsigned char*>PyByteArray_AS_STRING(target)
    cdef Py_ssize_t number
    for number in range(to, to + count):
        out[number >> 3] |= 1 << (number & 7)
