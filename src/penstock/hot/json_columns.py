"""Reads JSON objects into typed columns.

Rules: the columns are what is expected, and a row that has anything else in one of them is refused as a whole; members
that no column has are skipped, though they must be JSON. `null` is the same as no member. Of a member that comes twice
the last one counts. Numbers are read exactly: whole ones of 64 bits, doubles as Python reads them. What a message says
is bounded by its own bytes, and nothing recurses deeper than the columns, or than DEPTH_MAX where it skips.

| kind          | `flags`          | JSON                                                                            |
|---------------|------------------|---------------------------------------------------------------------------------|
| BOOL          |                  | true, false                                                                     |
| INT8 … INT64  |                  | a whole number that the column can hold; `1.0` and `1e3` are whole              |
| INT8 … INT64  | UNSIGNED         | … not negative                                                                  |
| INT32         | DATE             | a string, `2026-11-29`, as days since 1970                                      |
| INT64         | TIME; `wire`     | a string, `2026-11-29T12:00:00.5+01:00`, in units of 10^-`wire` s; no zone: UTC |
| FLOAT, DOUBLE |                  | a number                                                                        |
| TEXT, BINARY  |                  | a string, as UTF-8                                                              |
| TEXT          | ANY              | anything: a string's characters, of other values their JSON                     |
| LIST          |                  | an array                                                                        |
| MAP           |                  | an object with any names                                                        |
| STRUCT        |                  | an object                                                                       |
| NOTHING       |                  | null                                                                            |
"""

from __future__ import annotations

from penstock.hot import cells, memory
from penstock.hot.typed_columns import Column, RowReader

_bytes = bytes
_int = int

UNSIGNED = 1
DATE = 2
TIME = 4
ANY = 8
DEPTH_MAX = 100  # of values that are skipped

_UNSIGNED = UNSIGNED
_DATE = DATE
_TIME = TIME
_ANY = ANY
_DEPTH_MAX = DEPTH_MAX
_QUOTE = 0x22
_BACKSLASH = 0x5C
_COMMA = 0x2C
_COLON = 0x3A
_OPEN_OBJECT = 0x7B
_CLOSE_OBJECT = 0x7D
_OPEN_LIST = 0x5B
_CLOSE_LIST = 0x5D
_MINUS = 0x2D
_PLUS = 0x2B
_POINT = 0x2E
_ZERO = 0x30
_LOWER_N = 0x6E
_LOWER_T = 0x74
_LOWER_F = 0x66
_LOWER_U = 0x75
_LOWER_E = 0x65
_UPPER_T = 0x54
_UPPER_Z = 0x5A
_SPACE = 0x20
_NO_BYTE = -1
_NULL = b"null"
_TRUE = b"true"
_FALSE = b"false"
_DIGITS_MAX = 18  # of a number that fits 64 bits whatever its digits are
_EXACT_MAX = 2**53  # to here each whole number is a double
_EXACT_POWER = 22  # of ten, which is a double
_EXPONENT_MAX = 100_000
_LONG_MIN = 10**17  # ten times as much may have more than 18 digits
# What stands for the character behind a backslash, 0: nothing does.
_ESCAPED = bytes(
    {0x22: 0x22, 0x5C: 0x5C, 0x2F: 0x2F, 0x62: 8, 0x66: 12, 0x6E: 10, 0x72: 13, 0x74: 9}.get(one, 0)
    for one in range(256)
)
_ESCAPES = cells.data_of(_ESCAPED)


class JsonReader(RowReader):
    """Reads JSON rows. `begin` to `stop`: the characters of the last string; `number` and so on: the last number."""

    def __init__(self, root: Column) -> None:
        super().__init__(root)
        self.begin = self.stop = 0
        self.is_escaped = False
        self.number_begin = 0
        self.mantissa = 0
        self.exponent = 0
        self.is_negative = False
        self.is_exact = False  # mantissa and exponent are the number
        self.unescaped = bytearray()

    def _row(self) -> int:
        if not cells.is_utf8(self.text, self.at, self.end):
            return cells.ENCODING
        if self._peek() != _OPEN_OBJECT:
            return cells.FORM if self._peek() != _NO_BYTE else cells.ENDS
        reason = self._object(self.root)
        if reason:
            return reason
        self._peek()
        return cells.DECODED

    def _peek(self) -> int:
        """Go behind white space; return the byte that follows, or -1 at the end."""
        text = self.text
        at = self.at
        end = self.end
        while at < end:
            byte = text[at]
            if byte not in (32, 10, 13, 9):
                self.at = at
                return byte
            at += 1
        self.at = at
        return _NO_BYTE

    def _object(self, column: Column) -> int:
        """Append a struct: the object that begins at `at`."""
        count = column.count
        below = column.below
        children = column.children
        place = 0
        self.at += 1
        byte = self._peek()
        if byte == _CLOSE_OBJECT:
            self.at += 1
            return self._close_object(column)
        while True:
            reason = self._name(byte)
            if reason:
                return reason
            if self.is_escaped:
                reason = self._unescape()
                if reason:
                    return reason
            if place < below:
                child = children[place]
                if self.is_escaped or not memory.equals(self.text, self.begin, self.stop, child.name):
                    place = self._place(column)
            else:
                place = self._place(column)
            if self._peek() == _NO_BYTE:
                return cells.ENDS
            if place < 0:
                place = 0
                reason = self._skip(0)
            else:
                child = children[place]
                place += 1
                if child.count != count:
                    self.cells_left -= child.cells
                    if self.cells_left < 0:
                        return cells.EXPANDS
                    child.truncate(count)
                reason = self._value(child)
                if reason:
                    return self.blame(reason, column, child)
            if reason:
                return reason
            byte = self._peek()
            self.at += 1
            if byte == _CLOSE_OBJECT:
                return self._close_object(column)
            if byte != _COMMA:
                return cells.ENDS if byte == _NO_BYTE else cells.SYNTAX
            byte = self._peek()

    def _name(self, byte: _int) -> int:
        """Read the name of a member and go behind its colon; `byte` is at `at`."""
        if byte != _QUOTE:
            return cells.ENDS if byte == _NO_BYTE else cells.SYNTAX
        reason = self._string()
        if reason:
            return reason
        byte = self._peek()
        if byte != _COLON:
            return cells.ENDS if byte == _NO_BYTE else cells.SYNTAX
        self.at += 1
        return cells.DECODED

    def _place(self, column: Column) -> int:
        """Return the place of the column that the last string names, unescaped if it is escaped, or -1."""
        name = bytes(self.unescaped) if self.is_escaped else memory.copied(self.text, self.begin, self.stop)
        place: int = column.places.get(name, -1)
        return place

    def _close_object(self, column: Column) -> int:
        count = column.count
        for child in column.children:
            if child.count == count:
                if child.is_needed:
                    return self.blame(cells.MISSING, column, child)
                child.add_null()
        column.close_struct()
        return cells.DECODED

    def _value(self, column: Column) -> int:
        """Append the value that begins at `at`; for null, append nothing."""
        byte = self.text[self.at]
        if byte == _LOWER_N:
            return self._word(_NULL)
        kind = column.kind
        if kind in (cells.TEXT, cells.BINARY):
            if byte == _QUOTE:
                reason = self._string()
                return reason if reason else self._add_string(column)
            return self._any(column) if column.flags & _ANY else cells.FORM
        if kind == cells.STRUCT:
            return self._object(column) if byte == _OPEN_OBJECT else cells.FORM
        if kind == cells.LIST:
            return self._list(column) if byte == _OPEN_LIST else cells.FORM
        if kind == cells.MAP:
            return self._map(column) if byte == _OPEN_OBJECT else cells.FORM
        if kind == cells.BOOL:
            return self._bool(column, byte)
        if kind == cells.NOTHING:
            return cells.FORM
        if column.flags & (_DATE | _TIME):
            if byte != _QUOTE:
                return cells.FORM
            reason = self._string()
            return reason if reason else self._moment(column)
        if byte != _MINUS and not _ZERO <= byte <= _ZERO + 9:
            return cells.FORM if byte in (_QUOTE, _OPEN_LIST, _OPEN_OBJECT, _LOWER_T, _LOWER_F) else cells.SYNTAX
        reason = self._number()
        if reason:
            return reason
        return self._add_real(column) if kind in (cells.FLOAT, cells.DOUBLE) else self._add_whole(column)

    def _word(self, word: _bytes) -> int:
        """Go behind `null`, `true` or `false`."""
        end = self.at + len(word)
        if end > self.end:
            return (
                cells.ENDS
                if memory.begins(word, 0, len(word), memory.copied(self.text, self.at, self.end))
                else cells.SYNTAX
            )
        if not memory.equals(self.text, self.at, end, word):
            return cells.SYNTAX
        self.at = end
        return cells.DECODED

    def _bool(self, column: Column, byte: _int) -> int:
        if byte == _LOWER_T:
            reason = self._word(_TRUE)
        elif byte == _LOWER_F:
            reason = self._word(_FALSE)
        else:
            return cells.FORM
        if not reason:
            column.add_number(byte == _LOWER_T)
        return reason

    def _any(self, column: Column) -> int:
        """Append a value as it is written."""
        begin = self.at
        reason = self._skip(0)
        return reason if reason else column.add_bytes(self.text, begin, self.at)

    def _list(self, column: Column) -> int:
        element = column.child(0)
        self.at += 1
        byte = self._peek()
        if byte == _CLOSE_LIST:
            self.at += 1
            column.close_list()
            return cells.DECODED
        while True:
            if byte == _NO_BYTE:
                return cells.ENDS
            if not self._has_room(element):
                return cells.EXPANDS
            count = element.count
            reason = self._value(element)
            if reason:
                return self.blame(reason, column, element)
            if element.count == count:
                if element.is_needed:
                    return self.blame(cells.MISSING, column, element)
                element.add_null()
            byte = self._peek()
            self.at += 1
            if byte == _CLOSE_LIST:
                column.close_list()
                return cells.DECODED
            if byte != _COMMA:
                return cells.ENDS if byte == _NO_BYTE else cells.SYNTAX
            byte = self._peek()

    def _map(self, column: Column) -> int:
        key = column.child(0)
        value = column.child(1)
        self.at += 1
        byte = self._peek()
        if byte == _CLOSE_OBJECT:
            self.at += 1
            column.close_list()
            return cells.DECODED
        while True:
            reason = self._name(byte)
            if reason:
                return reason
            if not self._has_room(key) or not self._has_room(value):
                return cells.EXPANDS
            reason = self._add_string(key)
            if reason:
                return reason
            if self._peek() == _NO_BYTE:
                return cells.ENDS
            count = value.count
            reason = self._value(value)
            if reason:
                return self.blame(reason, column, value)
            if value.count == count:
                if value.is_needed:
                    return self.blame(cells.MISSING, column, value)
                value.add_null()
            byte = self._peek()
            self.at += 1
            if byte == _CLOSE_OBJECT:
                column.close_list()
                return cells.DECODED
            if byte != _COMMA:
                return cells.ENDS if byte == _NO_BYTE else cells.SYNTAX
            byte = self._peek()

    def _has_room(self, element: Column) -> bool:
        """True if a list may have one more element."""
        self.cells_left -= element.cells
        return self.cells_left >= 0 and element.count < cells.INT32_MAX

    # Strings.

    def _string(self) -> int:
        """Go behind the string that begins at `at`, and note where its characters are."""
        text = self.text
        end = self.end
        at = self.at + 1
        self.begin = at
        self.is_escaped = False
        while at < end:
            byte = text[at]
            if byte == _QUOTE:
                self.stop = at
                self.at = at + 1
                return cells.DECODED
            if byte < _SPACE:
                return cells.SYNTAX
            if byte == _BACKSLASH:
                self.is_escaped = True
                at += 1
            at += 1
        return cells.ENDS

    def _add_string(self, column: Column) -> int:
        """Append the last string."""
        if not self.is_escaped:
            return column.add_bytes(self.text, self.begin, self.stop)
        reason = self._unescape()
        if reason:
            return reason
        name = bytes(self.unescaped)
        return column.add_bytes(cells.data_of(name), 0, len(name))

    def _unescape(self) -> int:
        """Put the characters of the last string into `unescaped`."""
        text = self.text
        at = self.begin
        stop = self.stop
        out = self.unescaped
        memory.cut(out, 0)
        while at < stop:
            begin = at
            while at < stop and text[at] != _BACKSLASH:
                at += 1
            memory.append(out, text, begin, at)
            if at == stop:
                break
            byte = text[at + 1]
            at += 2
            if byte != _LOWER_U:
                if _ESCAPES[byte] == 0:
                    return cells.SYNTAX
                out.append(_ESCAPES[byte])
                continue
            code = self._code(at)
            at += 4
            if code < 0:
                return cells.SYNTAX
            if 0xD800 <= code <= 0xDFFF:  # half of a pair, which no text can have alone
                low = (
                    self._code(at + 2) if at + 6 <= stop and text[at] == _BACKSLASH and text[at + 1] == _LOWER_U else -1
                )
                if code > 0xDBFF or not 0xDC00 <= low <= 0xDFFF:
                    return cells.ENCODING
                code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
                at += 6
            out.extend(chr(code).encode())
        return cells.DECODED

    def _code(self, at: _int) -> int:
        """Return the number of four hex digits, or -1."""
        if at + 4 > self.stop:
            return -1
        text = self.text
        code = 0
        for place in range(at, at + 4):
            byte = text[place]
            if _ZERO <= byte <= _ZERO + 9:
                digit = byte - _ZERO
            else:
                digit = (byte | 32) - 87
                if not 10 <= digit <= 15:
                    return -1
            code = code << 4 | digit
        return code

    # Numbers.

    def _number(self) -> int:
        """Read the number that begins at `at`."""
        text = self.text
        end = self.end
        at = self.at
        self.number_begin = at
        self.is_negative = text[at] == _MINUS
        if self.is_negative:
            at += 1
        first = at
        mantissa = 0
        kept = 0  # digits of the mantissa, without the zeros before them
        dropped = 0  # digits that were not kept
        while at < end and _ZERO <= text[at] <= _ZERO + 9:
            if kept < _DIGITS_MAX:
                mantissa = 10 * mantissa + (text[at] - _ZERO)
                kept += mantissa != 0
            else:
                dropped += 1
            at += 1
        if at == first:
            return cells.ENDS if at == end else cells.SYNTAX
        if text[first] == _ZERO and at > first + 1:
            return cells.SYNTAX
        exponent = dropped
        if at < end and text[at] == _POINT:
            at += 1
            first = at
            while at < end and _ZERO <= text[at] <= _ZERO + 9:
                if kept < _DIGITS_MAX and not dropped:
                    mantissa = 10 * mantissa + (text[at] - _ZERO)
                    kept += mantissa != 0
                    exponent -= 1
                else:
                    dropped += 1
                at += 1
            if at == first:
                return cells.ENDS if at == end else cells.SYNTAX
        self.mantissa = mantissa
        self.exponent = exponent
        self.is_exact = dropped == 0
        self.at = at
        if at < end and text[at] | 32 == _LOWER_E:
            return self._exponent()
        return cells.DECODED

    def _exponent(self) -> int:
        """Read the exponent that begins at `at`."""
        text = self.text
        at = self.at + 1
        is_negative = at < self.end and text[at] == _MINUS
        if is_negative or (at < self.end and text[at] == _PLUS):
            at += 1
        first = at
        exponent = 0
        while at < self.end and _ZERO <= text[at] <= _ZERO + 9:
            if exponent < _EXPONENT_MAX:
                exponent = 10 * exponent + (text[at] - _ZERO)
            at += 1
        if at == first:
            return cells.ENDS if at == self.end else cells.SYNTAX
        self.exponent += -exponent if is_negative else exponent
        self.at = at
        return cells.DECODED

    def _add_whole(self, column: Column) -> int:
        """Append the last number to a column of whole ones."""
        mantissa = self.mantissa
        exponent = self.exponent
        if not self.is_exact:
            return self._add_long(column)
        while exponent < 0 and mantissa % 10 == 0 and mantissa:
            mantissa //= 10
            exponent += 1
        if mantissa and exponent < 0:
            return cells.FORM  # a fraction
        while exponent > 0 and mantissa:
            if mantissa >= _LONG_MIN:
                return self._add_long(column)
            mantissa *= 10
            exponent -= 1
        if self.is_negative:
            mantissa = -mantissa
        if mantissa < 0 and column.flags & _UNSIGNED:
            return cells.NUMBER
        return self._add_bounded(column, mantissa)

    def _add_bounded(self, column: Column, number: _int) -> int:
        """Append a number if the column is wide enough for it."""
        bits = 8 * column.width
        if bits < 64:
            if column.flags & _UNSIGNED:
                if number < 0 or number >> bits:
                    return cells.NUMBER
            elif number >> (bits - 1) not in (0, -1):
                return cells.NUMBER
        column.add_number(number)
        return cells.DECODED

    def _add_long(self, column: Column) -> int:
        """Append a number of more than 18 digits."""
        # To a narrow column that is unsigned, too, a number beyond 63 bits is negative.
        reason = cells.long_number(self.text, self.number_begin, self.at, column.flags & _UNSIGNED)
        if reason:
            return reason
        return self._add_bounded(column, cells.long_value(self.text, self.number_begin, self.at))

    def _add_real(self, column: Column) -> int:
        """Append the last number to a column of floating-point ones."""
        if self.is_exact and self.mantissa <= _EXACT_MAX and -_EXACT_POWER <= self.exponent <= _EXACT_POWER:
            real = cells.scaled(self.mantissa, self.exponent)
            if self.is_negative:
                real = -real
        else:
            real = cells.parsed_real(self.text, self.number_begin, self.at)
        if not cells.is_finite(real, column.width):
            return cells.NUMBER
        column.add_real(real)
        return cells.DECODED

    # Dates and times.

    def _digits(self, at: _int, count: _int) -> int:
        """Return the number that so many digits are, or -1."""
        if at + count > self.stop:
            return -1
        text = self.text
        number = 0
        for place in range(at, at + count):
            if not _ZERO <= text[place] <= _ZERO + 9:
                return -1
            number = 10 * number + (text[place] - _ZERO)
        return number

    def _is(self, at: _int, byte: _int) -> bool:
        return at < self.stop and self.text[at] == byte

    def _moment(self, column: Column) -> int:
        """Append the last string as a date or a time."""
        if self.is_escaped:
            return cells.FORM
        at = self.begin
        year = self._digits(at, 4)
        month = self._digits(at + 5, 2)
        day = self._digits(at + 8, 2)
        if year < 0 or not self._is(at + 4, _MINUS) or not self._is(at + 7, _MINUS):
            return cells.FORM
        if not 1 <= month <= 12 or not 1 <= day <= _days_of(year, month):
            return cells.FORM
        days = _days_since_1970(year, month, day)
        at += 10
        if column.flags & _DATE:
            if at != self.stop:
                return cells.FORM
            column.add_number(days)
            return cells.DECODED
        return self._time(column, days, at)

    def _time(self, column: Column, days: _int, at: _int) -> int:
        """Append the time of a day, which begins with T or a space at `at`."""
        if not self._is(at, _UPPER_T) and not self._is(at, _SPACE) and not self._is(at, _LOWER_T):
            return cells.FORM
        hour = self._digits(at + 1, 2)
        minute = self._digits(at + 4, 2)
        if not 0 <= hour <= 23 or not 0 <= minute <= 59 or not self._is(at + 3, _COLON):
            return cells.FORM
        second = 0
        at += 6
        if self._is(at, _COLON):
            second = self._digits(at + 1, 2)
            if not 0 <= second <= 59:
                return cells.FORM
            at += 3
        fraction = 0
        digits = 0
        if self._is(at, _POINT):
            at += 1
            while at < self.stop and _ZERO <= self.text[at] <= _ZERO + 9:
                if digits < column.wire:
                    fraction = 10 * fraction + (self.text[at] - _ZERO)
                    digits += 1
                at += 1
            if self.text[at - 1] == _POINT:
                return cells.FORM
        while digits < column.wire:
            fraction *= 10
            digits += 1
        seconds = 86400 * days + 3600 * hour + 60 * minute + second
        if at < self.stop and self.text[at] | 32 == _UPPER_Z | 32:
            at += 1
        elif self._is(at, _PLUS) or self._is(at, _MINUS):
            is_west = self.text[at] == _MINUS
            hour = self._digits(at + 1, 2)
            at += 4 if self._is(at + 3, _COLON) else 3
            minute = self._digits(at, 2)
            if not 0 <= hour <= 23 or not 0 <= minute <= 59:
                return cells.FORM
            seconds += 60 * (60 * hour + minute) if is_west else -60 * (60 * hour + minute)
            at += 2
        if at != self.stop:
            return cells.FORM
        unit = 1
        for _digit in range(column.wire):
            unit *= 10
        if unit == 1_000_000_000 and not -9_000_000_000 < seconds < 9_000_000_000:
            return cells.NUMBER  # nanoseconds reach from 1677 to 2262
        column.add_number(seconds * unit + fraction)
        return cells.DECODED

    def _skip(self, depth: _int) -> int:
        """Go behind the value that begins at `at`, which must be JSON."""
        if depth >= _DEPTH_MAX:
            return cells.DEEP
        byte = self.text[self.at]
        if byte == _QUOTE:
            reason = self._string()
            return self._unescape() if not reason and self.is_escaped else reason
        if byte == _LOWER_N:
            return self._word(_NULL)
        if byte == _LOWER_T:
            return self._word(_TRUE)
        if byte == _LOWER_F:
            return self._word(_FALSE)
        if byte == _MINUS or _ZERO <= byte <= _ZERO + 9:
            return self._number()
        if byte != _OPEN_LIST and byte != _OPEN_OBJECT:
            return cells.SYNTAX
        is_object = byte == _OPEN_OBJECT
        close = _CLOSE_OBJECT if is_object else _CLOSE_LIST
        self.at += 1
        byte = self._peek()
        if byte == close:
            self.at += 1
            return cells.DECODED
        while True:
            if is_object:
                reason = self._name(byte)
                if not reason and self.is_escaped:
                    reason = self._unescape()
                if reason:
                    return reason
                byte = self._peek()
            if byte == _NO_BYTE:
                return cells.ENDS
            reason = self._skip(depth + 1)
            if reason:
                return reason
            byte = self._peek()
            self.at += 1
            if byte == close:
                return cells.DECODED
            if byte != _COMMA:
                return cells.ENDS if byte == _NO_BYTE else cells.SYNTAX
            byte = self._peek()


def _days_of(year: _int, month: _int) -> int:
    """Return the number of days of a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _days_since_1970(year: _int, month: _int, day: _int) -> int:
    """Return the days from 1970-01-01 to a date of the Gregorian calendar, years 0 to 9999."""
    # Years begin in March here, so that the leap day is the last of its year; 400 of them have 146,097 days.
    shifted = year - (month <= 2) + 400
    era = shifted // 400
    year_of_era = shifted - 400 * era
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return 146_097 * (era - 1) + 365 * year_of_era + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
