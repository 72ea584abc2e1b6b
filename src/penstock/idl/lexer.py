"""Lexer: the tokens of an IDL file, one at a time, with their places and documentation comments.

Rules: nothing here raises for what a file holds. What is no token comes as one of kind BAD, whose value says why; then
the lexer goes on behind it. Each token costs time in proportion to its characters.

| text                                    | token                                                              |
|-----------------------------------------|--------------------------------------------------------------------|
| "Order", `base.Order`, `struct`         | NAME; which words are reserved, the parser knows                   |
| `12`, `-3`, `0x1F`, `098`               | INT: decimal with leading zeros; -2**63 … 2**63 - 1                |
| `1.5`, `.5`, `2.`, `1e-3`               | DOUBLE: finite                                                     |
| `"text"`, `'text'`                      | LITERAL, on one line, with the escapes of Thrift and Go            |
| `{ } ( ) [ ] < > : ; , = * & . -`       | SYMBOL                                                             |
| `// …`, `# …`, `/* … */`                | nothing                                                            |
| `/** … */`, `/**@ … */`                 | `comment` of the next token                                        |
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from enum import Enum
from typing import Final, NamedTuple

from penstock.idl.model import Position

FILE_BYTES_MAX = 2 << 20
"""Most bytes of one IDL file, in UTF-8."""
TOKENS_MAX = 250_000
"""Most tokens of one IDL file: ten times those of the largest that are known."""
PROGRAM_TOKENS_MAX = 500_000
"""Most tokens of all files of one program."""

_I64 = range(-(2**63), 2**63)
_DIGITS_MAX = 400  # of a number: longer ones are refused before they are converted


class Kind(Enum):
    """Kind of a token."""

    NAME = "name"
    INT = "int"
    DOUBLE = "double"
    LITERAL = "literal"
    SYMBOL = "symbol"
    BAD = "bad"  # no token: `value` is the mistake
    TOO_MANY = "too many"  # more tokens than the limit: `value` is the mistake; END follows
    END = "end"


class Token(NamedTuple):
    """A token: its text in the file from `at` to `end`, what it stands for, and the comment that documents it."""

    kind: Kind
    text: str
    at: int
    end: int
    value: int | float | str = ""
    comment: str = ""
    is_first: bool = False  # of its line

    def __str__(self) -> str:
        if self.kind is Kind.END:
            return "the end of the file"
        shown = self.text if len(self.text) <= _SHOWN_MAX else self.text[:_SHOWN_MAX] + "…"
        return shown if self.kind is Kind.LITERAL else f'"{shown}"'


_SHOWN_MAX = 40  # characters of a token in a mistake
_SKIP: Final = re.compile(r"(?:[ \t\r\n]++|//[^\n]*+|\#[^\n]*+)*+")
_TOKEN: Final = re.compile(
    r"""(?P<name>[A-Za-z_](?:\.?[A-Za-z_0-9])*+)
      | (?P<hex>[+-]?0x[0-9A-Fa-f]++)
      | (?P<number>[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)
      | (?P<literal>["'])
      | (?P<comment>/\*)
      | (?P<symbol>[{}()\[\]<>:;,=*&.\-])""",
    re.VERBOSE,
)
_QUOTED: Final = {
    mark: re.compile(rf"[^{mark}\\\n]*+(?:\\[^\n][^{mark}\\\n]*+)*+{mark}") for mark in "\"'"
}  # what follows the opening mark
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))")
_ESCAPES: Final = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
_WORD = r"(?:\{[^ \t\r\n\f.{}]*+\}|[^ \t\r\n\f.{}]++)"
_PREFIX: Final = re.compile(rf"{_WORD}(?:\.{_WORD})*+")
_LANGUAGE: Final = re.compile(r"[*A-Za-z_0-9.\-]++")
_NO_TOKENS: Final = re.compile(r"""[^A-Za-z_0-9+"'/{}()\[\]<>:;,=*&.\-\# \t\r\n]++|.""", re.DOTALL)


class Lexer:
    """Reads a text from the front; `position` gives the place of an offset, `tokens_left` how many may come."""

    def __init__(self, text: str, file: str, tokens_max: int = TOKENS_MAX) -> None:
        self._text = text
        self._file = file
        self._at = 1 if text.startswith("\ufeff") else 0
        self._is_first = True
        self.tokens_left = tokens_max
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def position(self, at: int) -> Position:
        """Return the place of an offset in the text."""
        line = bisect_right(self._lines, at)
        return Position(self._file, line, at - self._lines[line - 1] + 1)

    def next(self) -> Token:
        """Return the next token; at the end of the text END, again and again."""
        comment, is_first = "", self._is_first
        while True:
            began = self._at
            at = self._at = _SKIP.match(self._text, began).end()  # type: ignore[union-attr]  # matches nothing, too
            is_first = is_first or "\n" in self._text[began:at]
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup != "comment":
                break
            end = self._text.find("*/", at + 2)
            if end < 0:
                return self._bad(at, len(self._text), 'the comment has no end; close it by "*/"')
            self._at = end + 2
            is_first = is_first or "\n" in self._text[at:end]
            if self._text.startswith("/**", at) and self._text[at + 2 : end].strip("*"):
                comment = clean_comment(self._text[at + 3 : end])
        self._is_first = False
        return self._token(at, found, comment, is_first)

    def rest_of_prefix(self, token: Token) -> tuple[str, int] | None:
        """Return the prefix of a scope that begins where `token` does, and its offset; go on behind it."""
        return self._again(_PREFIX, token)

    def language(self, token: Token) -> tuple[str, int] | None:
        """Return the language of a namespace, such as `py.twisted`, that begins where `token` does."""
        return self._again(_LANGUAGE, token)

    def _again(self, pattern: re.Pattern[str], token: Token) -> tuple[str, int] | None:
        found = pattern.match(self._text, token.at)
        if found is None or token.kind is Kind.TOO_MANY:
            return None
        self._at = found.end()
        return found[0], token.at

    def _token(self, at: int, found: re.Match[str] | None, comment: str, is_first: bool) -> Token:
        if at >= len(self._text):
            return Token(Kind.END, "", at, at, comment=comment, is_first=True)
        if self.tokens_left == 0:
            self._at = len(self._text)
            most = f"one has {TOKENS_MAX:,} at most, all files together {PROGRAM_TOKENS_MAX:,}"
            return Token(Kind.TOO_MANY, "", at, at, f"the file has too many tokens: {most}")
        self.tokens_left -= 1
        if found is None:
            return self._no_token(at)
        kind, text, end = found.lastgroup, found[0], found.end()
        if kind == "literal":
            return self._literal(at, comment, is_first)
        self._at = end
        if kind == "name":
            return Token(Kind.NAME, text, at, end, text, comment, is_first)
        if kind == "symbol":
            return Token(Kind.SYMBOL, text, at, end, text, comment, is_first)
        return self._number(text, at, comment, is_first)

    def _bad(self, at: int, end: int, mistake: str) -> Token:
        """Skip to `end`, and return what is no token."""
        self._at = end
        return Token(Kind.BAD, self._text[at:end], at, end, mistake)

    def _no_token(self, at: int) -> Token:
        end = _NO_TOKENS.match(self._text, at).end()  # type: ignore[union-attr]  # it matches any character
        shown = self._text[at : min(end, at + 8)]
        return self._bad(at, end, f"{shown!a} begins no name, number or text")

    def _number(self, text: str, at: int, comment: str, is_first: bool) -> Token:
        end = at + len(text)
        if len(text) > _DIGITS_MAX:
            return self._bad(at, end, f"the number has {len(text):,} characters; {_DIGITS_MAX} are the most")
        if "0x" in text:
            whole = int(text, 16)
        elif text.lstrip("+-").isdigit():
            whole = int(text)
        else:
            value = float(text)
            if math.isinf(value):
                return self._bad(at, end, f"the number {text} is too large for a double")
            return Token(Kind.DOUBLE, text, at, end, value, comment, is_first)
        if whole not in _I64:
            return self._bad(at, end, f"the number {text} does not fit 64 bits")
        return Token(Kind.INT, text, at, end, whole, comment, is_first)

    def _literal(self, at: int, comment: str, is_first: bool) -> Token:
        found = _QUOTED[self._text[at]].match(self._text, at + 1)
        if found is None:
            line_end = self._text.find("\n", at)
            mistake = f"the text has no end on its line; close it by {self._text[at]}"
            return self._bad(at, len(self._text) if line_end < 0 else line_end, mistake)
        text = self._text[at : found.end()]
        try:
            value = _unescaped(text[1:-1])
        except ValueError as error:
            return self._bad(at, found.end(), str(error))
        self._at = found.end()
        return Token(Kind.LITERAL, text, at, self._at, value, comment, is_first)


def _unescaped(text: str) -> str:
    r"""Return what a literal means: \n and its like, \xHH and \OOO as bytes of UTF-8, \uHHHH, \UHHHHHHHH."""
    if "\\" not in text:
        return text
    parts: list[bytes] = []
    done = 0
    for found in _ESCAPE.finditer(text):
        parts += (text[done : found.start()].encode(), _escaped(found))
        done = found.end()
    parts.append(text[done:].encode())
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError:
        raise ValueError(r"the bytes of \x and \OOO are no UTF-8; write \uHHHH for a character") from None


def _escaped(found: re.Match[str]) -> bytes:
    two, four, eight, octal, one = found.groups()
    if one is not None:
        if one not in _ESCAPES:
            raise ValueError(f"there is no escape {found[0]!a}; a backslash itself is written twice")
        return _ESCAPES[one].encode()
    number = int(octal, 8) if octal is not None else int(two or four or eight, 16)
    if (two or octal) is not None:
        if number > 255:
            raise ValueError(f"{found[0]} is no byte; the largest is \\377")
        return bytes((number,))
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"{found[0]} is no character of Unicode")
    return chr(number).encode()


def clean_comment(raw: str) -> str:
    r"""Return the text of a documentation comment, given without `/**` and `*/`.

    The lines lose the asterisk in front of them, or their common indent if they have none, and what is blank at their
    ends; blank lines at the beginning and the end are left out. `@` at the very beginning is Frugal's mark.
    """
    first, *rest = raw.removeprefix("@").rstrip("*").replace("\r\n", "\n").split("\n")
    lines = [line.rstrip(_BLANK) for line in rest]
    if all(not line or line.lstrip(_BLANK).startswith("*") for line in lines):
        lines = [line.lstrip(_BLANK)[1:].removeprefix(" ") for line in lines]
    else:
        indent = min((len(line) - len(line.lstrip(_BLANK)) for line in lines if line), default=0)
        lines = [line[indent:] for line in lines]
    lines = [first.strip(_BLANK), *lines]
    while lines and not lines[-1]:
        lines.pop()
    begin = next((index for index, line in enumerate(lines) if line), len(lines))
    return "\n".join(lines[begin:]) if len(lines) - begin > 1 else "".join(lines[begin:]).strip(_BLANK)


_BLANK = " \t\r"
