# See subject_search.py.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcmp

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* CRC-32C, with the processor's instruction where there is one: a page is 252 bytes, and a call of the package of
       that name takes longer than its checksum. */
    static uint32_t penstock_crc_by_bits(uint32_t crc, const unsigned char *data, size_t size) {
        static const uint32_t half[16] = {
            0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
            0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
        };
        while (size--) {
            crc ^= *data++;
            crc = crc >> 4 ^ half[crc & 15];
            crc = crc >> 4 ^ half[crc & 15];
        }
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("sse4.2")))
    static uint32_t penstock_crc_by_word(uint32_t crc, const unsigned char *data, size_t size) {
        uint64_t word, wide = crc;
        for (; size >= 8; size -= 8, data += 8) {
            memcpy(&word, data, 8);
            wide = __builtin_ia32_crc32di(wide, word);
        }
        for (crc = (uint32_t)wide; size--; data++) crc = __builtin_ia32_crc32qi(crc, *data);
        return crc;
    }
    #define PENSTOCK_CRC(crc, data, size) (__builtin_cpu_supports("sse4.2") \\
        ? penstock_crc_by_word(crc, data, size) : penstock_crc_by_bits(crc, data, size))
    #else
    #define PENSTOCK_CRC penstock_crc_by_bits
    #endif

    static int penstock_page_is_sound(const unsigned char *page, uint32_t number) {
        uint32_t crc = PENSTOCK_CRC(0xffffffffu, page, 252), stored;
        unsigned char digits[4] = {(unsigned char)number, (unsigned char)(number >> 8), (unsigned char)(number >> 16),
                                   (unsigned char)(number >> 24)};
        crc = ~PENSTOCK_CRC(crc, digits, 4);
        stored = page[252] | (uint32_t)page[253] << 8 | (uint32_t)page[254] << 16 | (uint32_t)page[255] << 24;
        return crc == stored;
    }
    """
    int penstock_page_is_sound(const unsigned char*, uint32_t) noexcept nogil


cdef inline Py_ssize_t probe(
    const unsigned char* bits, uint64_t pages, const unsigned char* hashes, Py_ssize_t count, unsigned char* seen,
    unsigned char* found,
) noexcept:
    cdef Py_ssize_t row, wrong = -1
    cdef int turn
    cdef uint64_t hashed, number, value, step, bit
    cdef const unsigned char* page
    with nogil:
        for row in range(count):
            hashed = (<const uint64_t*>hashes)[row]
            number = (hashed >> 32) * pages >> 32
            page = bits + 256 * number
            if not seen[number]:
                if not penstock_page_is_sound(page, <uint32_t>number):
                    wrong = <Py_ssize_t>number
                    break
                seen[number] = 1
            value = <uint32_t>hashed
            step = <uint32_t>(value * 0x9E3779B9UL) >> 3 | 1
            found[row] = 1
            for turn in range(7):
                bit = value * 2016 >> 32
                if not page[bit >> 3] >> (bit & 7) & 1:
                    found[row] = 0
                    break
                value = <uint32_t>(value + step)
    return wrong


cdef inline Py_ssize_t wrong_page(const unsigned char* bits, Py_ssize_t pages) noexcept:
    cdef Py_ssize_t number, wrong = -1
    with nogil:
        for number in range(pages):
            if not penstock_page_is_sound(bits + 256 * number, <uint32_t>number):
                wrong = number
                break
    return wrong


cdef inline bint may_hold_any(
    const unsigned char* bits, uint64_t pages, const unsigned char* hashes, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t row
    cdef int turn
    cdef uint64_t hashed, value, step, bit
    cdef const unsigned char* page
    for row in range(count):
        hashed = (<const uint64_t*>hashes)[row]
        page = bits + 256 * ((hashed >> 32) * pages >> 32)
        value = <uint32_t>hashed
        step = <uint32_t>(value * 0x9E3779B9UL) >> 3 | 1
        for turn in range(7):
            bit = value * 2016 >> 32
            if not page[bit >> 3] >> (bit & 7) & 1:
                break
            value = <uint32_t>(value + step)
        else:
            return True
    return False


cdef inline Py_ssize_t row_of(object ends, object text, Py_ssize_t count, bytes subject) except -1:
    cdef Py_buffer end_view, text_view
    cdef const int32_t* numbers
    cdef const char* wanted = PyBytes_AS_STRING(subject)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(subject), low = 0, high = count, middle, length
    cdef int order
    PyObject_GetBuffer(ends, &end_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(text, &text_view, PyBUF_SIMPLE)
        try:
            numbers = <const int32_t*>end_view.buf
            if count > 0 and (end_view.len < 4 * (count + 1) or numbers[0] < 0 or numbers[count] > text_view.len):
                raise IndexError("subjects beyond the end")
            while low < high:
                middle = (low + high) // 2
                length = numbers[middle + 1] - numbers[middle]
                order = memcmp(<const char*>text_view.buf + numbers[middle], wanted, min(length, size))
                if order < 0 or (order == 0 and length < size):
                    low = middle + 1
                else:
                    high = middle
        finally:
            PyBuffer_Release(&text_view)
    finally:
        PyBuffer_Release(&end_view)
    return low
