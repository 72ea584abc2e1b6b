# See memory.py. No function here checks bounds, except `part`.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytearray cimport PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdint cimport int32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from *:
    """
    #include <stddef.h>
    #include <string.h>

    /* What glibc calls memmem, for the short texts that are looked for here. */
    static const unsigned char *penstock_find(const unsigned char *text, size_t size,
                                              const unsigned char *other, size_t other_size) {
        const unsigned char *end = text + size;
        if (other_size == 0) return text;
        while ((size_t)(end - text) >= other_size) {
            text = (const unsigned char *)memchr(text, other[0], (size_t)(end - text) - other_size + 1);
            if (text == NULL) return NULL;
            if (memcmp(text, other, other_size) == 0) return text;
            text++;
        }
        return NULL;
    }

    /* The value of a base64 digit, or 255. */
    static unsigned char penstock_base64(unsigned char c) {
        if (c >= 'A' && c <= 'Z') return c - 'A';
        if (c >= 'a' && c <= 'z') return c - 'a' + 26;
        if (c >= '0' && c <= '9') return c - '0' + 52;
        return c == '+' ? 62 : c == '/' ? 63 : 255;
    }

    static const unsigned long long penstock_powers_of_10[] = {
        1ull, 10ull, 100ull, 1000ull, 10000ull, 100000ull, 1000000ull, 10000000ull, 100000000ull, 1000000000ull,
        10000000000ull, 100000000000ull, 1000000000000ull, 10000000000000ull, 100000000000000ull,
        1000000000000000ull, 10000000000000000ull, 100000000000000000ull, 1000000000000000000ull,
        10000000000000000000ull};

    /* Number of decimal digits: the number of bits gives it, or one less. */
    static inline int penstock_digits(unsigned long long value) {
        int guess = (64 - __builtin_clzll(value | 1)) * 1233 >> 12;
        return guess + (guess == 0 || value >= penstock_powers_of_10[guess]);
    }

    /* Write the digits, two at a time: a division takes longer than all else. */
    static inline void penstock_put_digits(unsigned char *end, unsigned long long value) {
        static const char pairs[] =
            "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
            "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
        while (value >= 100) {
            end -= 2;
            memcpy(end, pairs + 2 * (value % 100), 2);
            value /= 100;
        }
        if (value >= 10) memcpy(end - 2, pairs + 2 * value, 2);
        else end[-1] = (unsigned char)('0' + value);
    }
    """
    int penstock_digits(unsigned long long) noexcept nogil
    void penstock_put_digits(unsigned char*, unsigned long long) noexcept nogil
    const unsigned char* penstock_find(const unsigned char*, size_t, const unsigned char*, size_t) noexcept nogil
    unsigned char penstock_base64(unsigned char) noexcept nogil


cdef inline bytes part(object buffer, Py_ssize_t begin, Py_ssize_t end):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= begin <= end <= view.len:
            raise IndexError(f"{begin} to {end} of {view.len} bytes")
        return PyBytes_FromStringAndSize(<const char*>view.buf + begin, end - begin)
    finally:
        PyBuffer_Release(&view)


cdef inline bytes copied(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char*>text + begin, end - begin)


cdef inline Py_ssize_t find_byte(const unsigned char* text, int byte, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const unsigned char* hit
    if begin >= end:
        return -1
    hit = <const unsigned char*>memchr(text + begin, byte, end - begin)
    return -1 if hit == NULL else hit - text


cdef inline Py_ssize_t find(
    const unsigned char* text, Py_ssize_t begin, Py_ssize_t end,
    const unsigned char* other, Py_ssize_t other_begin, Py_ssize_t other_end,
) noexcept nogil:
    cdef const unsigned char* hit = penstock_find(text + begin, end - begin, other + other_begin, other_end - other_begin)
    return -1 if hit == NULL else hit - text


cdef inline bint equals(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, bytes wanted) noexcept:
    if wanted is None:
        return False
    return end - begin == PyBytes_GET_SIZE(wanted) and memcmp(text + begin, PyBytes_AS_STRING(wanted), end - begin) == 0


cdef inline bint begins(const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, bytes wanted) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(wanted)
    return end - begin >= size and memcmp(text + begin, PyBytes_AS_STRING(wanted), size) == 0


cdef inline int64_t number(
    const unsigned char* text, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t digits_max
) noexcept nogil:
    cdef int64_t value = 0
    cdef Py_ssize_t at
    if end <= begin or end - begin > digits_max:
        return -1
    for at in range(begin, end):
        if not 48 <= text[at] <= 57:
            return -1
        value = 10 * value + (text[at] - 48)
    return value


cdef inline int cut(bytearray target, Py_ssize_t size) except -1:
    PyByteArray_Resize(target, size)
    return 0


cdef inline Py_ssize_t put_decimal(unsigned char* target, Py_ssize_t at, uint64_t value) noexcept nogil:
    at += penstock_digits(value)
    penstock_put_digits(target + at, value)
    return at


cdef inline Py_ssize_t decimal_digits(uint64_t value) noexcept nogil:
    return penstock_digits(value)


cdef inline bytes new_text(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline unsigned char* inside(bytes text) noexcept:
    return <unsigned char*>PyBytes_AS_STRING(text)


cdef inline bytearray new(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef inline Py_ssize_t widen(bytearray target, Py_ssize_t size) except -1:
    cdef Py_ssize_t begin = PyByteArray_GET_SIZE(target)
    PyByteArray_Resize(target, begin + size)
    return begin


cdef inline int32_t* more_places(int32_t* places, Py_ssize_t count) except NULL:
    places = <int32_t*>realloc(places, count * sizeof(int32_t))
    if places == NULL:
        raise MemoryError
    return places


cdef inline void free_places(int32_t* places) noexcept nogil:
    free(places)


cdef inline int64_t* more_int64s(int64_t* numbers, Py_ssize_t count) except NULL:
    numbers = <int64_t*>realloc(numbers, count * sizeof(int64_t))
    if numbers == NULL:
        raise MemoryError
    return numbers


cdef inline int32_t* more_int32s(int32_t* numbers, Py_ssize_t count) except NULL:
    return more_places(numbers, count)


cdef inline void free_int64s(int64_t* numbers) noexcept nogil:
    free(numbers)


cdef inline void free_int32s(int32_t* numbers) noexcept nogil:
    free(numbers)


cdef inline int append(bytearray target, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end) except -1:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(target)
    PyByteArray_Resize(target, size + end - begin)
    memcpy(PyByteArray_AS_STRING(target) + size, text + begin, end - begin)
    return 0


cdef inline bint append_base64(
    bytearray target, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end
) except -1:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(target)
    cdef Py_ssize_t pads = 0
    cdef Py_ssize_t at
    cdef unsigned char* out
    cdef unsigned char digit
    cdef unsigned int bits = 0
    if (end - begin) % 4:
        return False
    while pads < 2 and end - pads > begin and text[end - pads - 1] == 61:
        pads += 1
    PyByteArray_Resize(target, size + (end - begin) // 4 * 3 - pads)
    out = <unsigned char*>PyByteArray_AS_STRING(target) + size
    for at in range(begin, end - pads):
        digit = penstock_base64(text[at])
        if digit == 255:
            PyByteArray_Resize(target, size)
            return False
        bits = bits << 6 | digit
        # Six bits come in at a time, and eight go out from the second digit of four on.
        if (at - begin) % 4:
            out[0] = bits >> (6 - 2 * ((at - begin) % 4)) & 255
            out += 1
    return True


cdef inline void put(
    unsigned char* target, Py_ssize_t at, const unsigned char* text, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    memcpy(target + at, text + begin, end - begin)


cdef inline void put_zeros(unsigned char* target, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    memset(target + at, 0, size)


cdef inline void put_int32(unsigned char* target, Py_ssize_t at, int32_t value) noexcept nogil:
    memcpy(target + at, &value, 4)


cdef inline void put_int64(unsigned char* target, Py_ssize_t at, int64_t value) noexcept nogil:
    memcpy(target + at, &value, 8)


cdef inline void put_hex(unsigned char* target, Py_ssize_t at, uint64_t value, Py_ssize_t digits) noexcept nogil:
    cdef unsigned char digit
    while digits > 0:
        digits -= 1
        digit = value & 15
        target[at + digits] = digit + (48 if digit < 10 else 87)
        value >>= 4
