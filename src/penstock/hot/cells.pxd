# See cells.py. No function here checks bounds.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    BOOL = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT = 6
    DOUBLE = 7
    DECIMAL = 8
    TEXT = 9
    BINARY = 10
    UUID = 11
    RAW = 12
    LIST = 13
    MAP = 14
    STRUCT = 15
    CHOICE = 16
    NOTHING = 17

    DECODED = 0
    ENDS = 1
    SIZE = 2
    DEEP = 3
    ENCODING = 4
    MISSING = 5
    TRAILING = 6
    FRAME = 7
    NAME = 8
    EXPANDS = 9
    WIRE_TYPE = 10
    NUMBER = 11
    FORM = 12
    SYNTAX = 13

    INT32_MAX = 0x7FFFFFFF

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, void*) except? -1

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* True if the bytes are UTF-8: no surrogates, nothing in more bytes than it needs, nothing beyond U+10FFFF. */
    static int penstock_is_utf8(const unsigned char *at, const unsigned char *end) {
        while (at < end) {
            uint64_t word;
            if (end - at >= 8) {
                memcpy(&word, at, 8);
                if ((word & 0x8080808080808080ULL) == 0) { at += 8; continue; }
            }
            unsigned char lead = *at;
            if (lead < 0x80) { at++; continue; }
            unsigned char low = 0x80, high = 0xBF;
            int more;
            if (lead >= 0xC2 && lead <= 0xDF) more = 1;
            else if (lead >= 0xE0 && lead <= 0xEF) {
                more = 2;
                if (lead == 0xE0) low = 0xA0;
                if (lead == 0xED) high = 0x9F;
            } else if (lead >= 0xF0 && lead <= 0xF4) {
                more = 3;
                if (lead == 0xF0) low = 0x90;
                if (lead == 0xF4) high = 0x8F;
            } else return 0;
            if (end - at <= more) return 0;
            if (at[1] < low || at[1] > high) return 0;
            for (int place = 2; place <= more; place++) if ((at[place] & 0xC0) != 0x80) return 0;
            at += more + 1;
        }
        return 1;
    }

    static int16_t penstock_int16_be(const unsigned char *at) {
        uint16_t value;
        memcpy(&value, at, 2);
        return (int16_t)__builtin_bswap16(value);
    }
    static int32_t penstock_int32_be(const unsigned char *at) {
        uint32_t value;
        memcpy(&value, at, 4);
        return (int32_t)__builtin_bswap32(value);
    }
    static int64_t penstock_int64_be(const unsigned char *at) {
        uint64_t value;
        memcpy(&value, at, 8);
        return (int64_t)__builtin_bswap64(value);
    }

    static double penstock_scaled(int64_t mantissa, int exponent) {
        static const double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13,
                                        1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
        return exponent < 0 ? (double)mantissa / powers[-exponent] : (double)mantissa * powers[exponent];
    }
    static int penstock_is_finite(double real, int width) {
        double size = real < 0 ? -real : real;
        return width == 4 ? size < 0x1.ffffffp127 : size <= 0x1.fffffffffffffp1023;
    }
    """
    double penstock_scaled(int64_t, int) noexcept nogil
    int penstock_is_finite(double, int) noexcept nogil
    int penstock_is_utf8(const unsigned char*, const unsigned char*) noexcept nogil
    int16_t penstock_int16_be(const unsigned char*) noexcept nogil
    int32_t penstock_int32_be(const unsigned char*) noexcept nogil
    int64_t penstock_int64_be(const unsigned char*) noexcept nogil


cdef inline const unsigned char* bytes_of(object view) except? NULL:
    cdef Py_buffer buffer
    cdef const unsigned char* begin
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    begin = <const unsigned char*>buffer.buf
    PyBuffer_Release(&buffer)
    return begin


cdef inline const unsigned char* data_of(bytes text) noexcept:
    return <const unsigned char*>PyBytes_AS_STRING(text)


cdef inline int16_t int16_be(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    return penstock_int16_be(text + at)


cdef inline int32_t int32_be(const unsigned char* text, Py_ssize_t at) noexcept nogil:
    return penstock_int32_be(text + at)


cdef inline int32_t int32_at(const unsigned char* source, Py_ssize_t at) noexcept nogil:
    cdef int32_t value
    memcpy(&value, source + at, 4)
    return value


cdef inline int32_t wrap32(int64_t number) noexcept nogil:
    return <int32_t><uint32_t>number


cdef inline uint64_t unsigned64(int64_t number) noexcept nogil:
    return <uint64_t>number


cdef inline int64_t signed64(uint64_t number) noexcept nogil:
    return <int64_t>number


cdef inline int64_t unzigzag(uint64_t number) noexcept nogil:
    return <int64_t>((number >> 1) ^ (0 - (number & 1)))


cdef inline void put_number(unsigned char* target, Py_ssize_t at, int64_t value, Py_ssize_t width) noexcept nogil:
    memcpy(target + at, &value, width)


cdef inline bint is_within(const unsigned char* target, Py_ssize_t at, const unsigned char* bounds) noexcept nogil:
    cdef Py_ssize_t place
    cdef const unsigned char* bound = bounds + 16 if target[at + 15] >= 128 else bounds
    for place in range(15, -1, -1):
        if target[at + place] != bound[place]:
            return (target[at + place] > bound[place]) == (bound != bounds)
    return False


cdef inline void put_swapped(
    unsigned char* target, Py_ssize_t at, const unsigned char* text, Py_ssize_t begin, Py_ssize_t width
) noexcept nogil:
    cdef Py_ssize_t place
    cdef int64_t number
    if width == 8:
        number = penstock_int64_be(text + begin)
        memcpy(target + at, &number, 8)
        return
    for place in range(width):
        target[at + place] = text[begin + width - 1 - place]


cdef inline void put_repeated(unsigned char* target, Py_ssize_t at, int byte, Py_ssize_t count) noexcept nogil:
    memset(target + at, byte, count)


cdef inline unsigned char _digit(unsigned char value) noexcept nogil:
    return value + (48 if value < 10 else 87)


cdef inline void put_uuid(
    unsigned char* target, Py_ssize_t at, const unsigned char* text, Py_ssize_t begin
) noexcept nogil:
    cdef Py_ssize_t place
    for place in range(16):
        if place == 4 or place == 6 or place == 8 or place == 10:
            target[at] = 45
            at += 1
        target[at] = _digit(text[begin + place] >> 4)
        target[at + 1] = _digit(text[begin + place] & 15)
        at += 2


cdef inline bint is_utf8(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    return penstock_is_utf8(text + begin, text + end)


# Of numbers with many digits, which are rare.
cdef inline int long_number(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, int is_unsigned) except -1:
    from penstock.hot import cells as plain
    return plain.long_number(PyBytes_FromStringAndSize(<const char*>text + begin, end - begin), 0, end - begin, is_unsigned)


cdef inline int64_t long_value(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except? -1:
    from penstock.hot import cells as plain
    return plain.long_value(PyBytes_FromStringAndSize(<const char*>text + begin, end - begin), 0, end - begin)


cdef inline double parsed_real(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except? -1:
    cdef char number[64]
    if end - begin < 64:
        memcpy(number, text + begin, end - begin)
        number[end - begin] = 0
        return PyOS_string_to_double(number, NULL, NULL)
    return float(PyBytes_FromStringAndSize(<const char*>text + begin, end - begin))


cdef inline double scaled(int64_t mantissa, int64_t exponent) noexcept nogil:
    return penstock_scaled(mantissa, <int>exponent)


cdef inline bint is_finite(double real, Py_ssize_t width) noexcept nogil:
    return penstock_is_finite(real, <int>width)


cdef inline void put_real(unsigned char* target, Py_ssize_t at, double real, Py_ssize_t width) noexcept nogil:
    cdef float small
    if width == 4:
        small = <float>real
        memcpy(target + at, &small, 4)
    else:
        memcpy(target + at, &real, 8)


cdef inline Py_ssize_t zeros(const unsigned char* target, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t place, found = 0
    for place in range(count):
        found += target[place] == 0
    return found


cdef inline bytearray packed(const unsigned char* target, Py_ssize_t count):
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, (count + 7) // 8)
    cdef unsigned char* bits = <unsigned char*>PyByteArray_AS_STRING(out)
    cdef Py_ssize_t place
    cdef uint64_t word
    cdef unsigned char last = 0
    for place in range(count >> 3):
        memcpy(&word, target + 8 * place, 8)
        # The lowest bit of each byte moves to the highest byte, the first byte's to its lowest bit.
        bits[place] = <unsigned char>((word * <uint64_t>0x0102040810204080) >> 56)
    if count & 7:
        for place in range(count & 7):
            last |= target[(count & ~<Py_ssize_t>7) + place] << place
        bits[count >> 3] = last
    return out
