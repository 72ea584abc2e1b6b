# See load.py. Nothing here checks a bound.
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp


cdef inline bint same(
    const unsigned char* one, const unsigned char* other, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    return memcmp(one + begin, other + begin, end - begin) == 0


cdef inline const int64_t* int64s(const unsigned char* text, Py_ssize_t at, Py_ssize_t count) noexcept nogil:
    return <const int64_t*>(text + at)


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
