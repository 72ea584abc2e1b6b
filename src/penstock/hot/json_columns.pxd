# C types for json_columns.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from penstock.hot cimport cells, memory
from penstock.hot.typed_columns cimport Column, RowReader

cdef int _UNSIGNED
cdef int _DATE
cdef int _TIME
cdef int _ANY
cdef int _DEPTH_MAX
cdef int _QUOTE
cdef int _BACKSLASH
cdef int _COMMA
cdef int _COLON
cdef int _OPEN_OBJECT
cdef int _CLOSE_OBJECT
cdef int _OPEN_LIST
cdef int _CLOSE_LIST
cdef int _MINUS
cdef int _PLUS
cdef int _POINT
cdef int _ZERO
cdef int _LOWER_N
cdef int _LOWER_T
cdef int _LOWER_F
cdef int _LOWER_U
cdef int _LOWER_E
cdef int _UPPER_T
cdef int _UPPER_Z
cdef int _SPACE
cdef int _NO_BYTE
cdef bytes _NULL
cdef bytes _TRUE
cdef bytes _FALSE
cdef int _DIGITS_MAX
cdef int64_t _EXACT_MAX
cdef int64_t _EXACT_POWER
cdef int64_t _EXPONENT_MAX
cdef int64_t _LONG_MIN
cdef bytes _ESCAPED
cdef const unsigned char* _ESCAPES


cdef class JsonReader(RowReader):
    cdef Py_ssize_t begin
    cdef Py_ssize_t stop
    cdef bint is_escaped
    cdef Py_ssize_t number_begin
    cdef int64_t mantissa
    cdef int64_t exponent
    cdef bint is_negative
    cdef bint is_exact
    cdef bytearray unescaped

    @cython.locals(reason=int)
    cdef int _row(self) except -1

    @cython.locals(text="const unsigned char*", at=Py_ssize_t, end=Py_ssize_t, byte=int)
    cdef int _peek(self) except -2

    @cython.locals(
        count=Py_ssize_t, below=Py_ssize_t, children=list, place=Py_ssize_t, byte=int, reason=int, child=Column
    )
    cdef int _object(self, Column column) except -1

    @cython.locals(reason=int)
    cdef int _name(self, int byte) except -1

    @cython.locals(reason=int, name=bytes, place=Py_ssize_t)
    cdef Py_ssize_t _place(self, Column column) except -2

    @cython.locals(count=Py_ssize_t, child=Column)
    cdef int _close_object(self, Column column) except -1

    @cython.locals(byte=int, kind=int, reason=int)
    cdef int _value(self, Column column) except -1

    @cython.locals(end=Py_ssize_t)
    cdef int _word(self, bytes word) except -1

    @cython.locals(reason=int)
    cdef int _bool(self, Column column, int byte) except -1

    @cython.locals(begin=Py_ssize_t, reason=int)
    cdef int _any(self, Column column) except -1

    @cython.locals(element=Column, byte=int, count=Py_ssize_t, reason=int)
    cdef int _list(self, Column column) except -1

    @cython.locals(key=Column, value=Column, byte=int, count=Py_ssize_t, reason=int)
    cdef int _map(self, Column column) except -1

    cdef bint _has_room(self, Column element) except -1

    @cython.locals(text="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, byte=int)
    cdef int _string(self) except -1

    @cython.locals(reason=int, name=bytes)
    cdef int _add_string(self, Column column) except -1

    @cython.locals(
        text="const unsigned char*", at=Py_ssize_t, stop=Py_ssize_t, out=bytearray, begin=Py_ssize_t, byte=int,
        code=int, low=int,
    )
    cdef int _unescape(self) except -1

    @cython.locals(text="const unsigned char*", code=int, place=Py_ssize_t, byte=int, digit=int)
    cdef int _code(self, Py_ssize_t at) except -2

    @cython.locals(
        text="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, first=Py_ssize_t, mantissa=int64_t, kept=int,
        dropped=int64_t, exponent=int64_t,
    )
    cdef int _number(self) except -1

    @cython.locals(
        text="const unsigned char*", at=Py_ssize_t, is_negative=bint, first=Py_ssize_t, exponent=int64_t
    )
    cdef int _exponent(self) except -1

    @cython.locals(mantissa=int64_t, exponent=int64_t)
    cdef int _add_whole(self, Column column) except -1

    @cython.locals(bits=int)
    cdef int _add_bounded(self, Column column, int64_t number) except -1

    @cython.locals(reason=int)
    cdef int _add_long(self, Column column) except -1

    @cython.locals(real=double)
    cdef int _add_real(self, Column column) except -1

    @cython.locals(text="const unsigned char*", number=int64_t, place=Py_ssize_t)
    cdef int64_t _digits(self, Py_ssize_t at, Py_ssize_t count) except -2

    cdef bint _is(self, Py_ssize_t at, int byte) except -1

    @cython.locals(at=Py_ssize_t, year=int64_t, month=int64_t, day=int64_t, days=int64_t)
    cdef int _moment(self, Column column) except -1

    @cython.locals(
        hour=int64_t, minute=int64_t, second=int64_t, fraction=int64_t, digits=int, seconds=int64_t, is_west=bint,
        unit=int64_t, _digit=int,
    )
    cdef int _time(self, Column column, int64_t days, Py_ssize_t at) except -1

    @cython.locals(byte=int, reason=int, is_object=bint, close=int)
    cdef int _skip(self, int depth) except -1


cdef int64_t _days_of(int64_t year, int64_t month) noexcept

@cython.locals(shifted=int64_t, era=int64_t, year_of_era=int64_t, day_of_year=int64_t)
cdef int64_t _days_since_1970(int64_t year, int64_t month, int64_t day) noexcept
