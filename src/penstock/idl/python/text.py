"""Text of Python code: literals, docstrings and long lists, so that nothing of a contract becomes code.

Rules: what a contract gives (comments, constants, annotations, names of files) goes through `quoted` or `docstring`.
Characters that cannot be seen, or that turn the direction of writing, are written as escapes. The form is that of
ruff's formatter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from penstock.idl.model import Annotations

LINE_CHARS_MAX = 120
"""Longest line, where it can be broken."""
_AROUND = 8  # how much what `call` returns may be indented further

_CLOSING = re.compile(r'"{3,}|"+\Z')  # what would end a docstring, or be taken for a part of its end
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    """Return a text as a literal on one line."""
    mark = "'" if text.count('"') > text.count("'") else '"'
    return mark + "".join(f"\\{each}" if each == mark else _escaped(each) for each in text) + mark


def _escaped(character: str) -> str:
    if (known := _ESCAPES.get(character)) is not None:
        return known
    return character if character.isprintable() else escape(character)


def escape(character: str) -> str:
    """Return the escape of a character: `\\x00`, `\\u202e`."""
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def quoted_bytes(data: bytes) -> str:
    """Return bytes as a literal."""
    text = "".join(chr(each) if 0x20 <= each < 0x7F else f"\\x{each:02x}" for each in data.replace(b"\\", b"\\\\"))
    mark = "'" if text.count('"') > text.count("'") else '"'
    return f"b{mark}{text.replace(mark, chr(92) + mark)}{mark}"


def docstring(text: str, indent: str = "") -> list[str]:
    """Return a docstring as lines; none for an empty text."""
    lines = ["".join(map(_seen, line)).rstrip() for line in text.strip().splitlines()]
    if not any(lines):
        return []
    escaped = _CLOSING.sub(lambda found: '\\"' * len(found[0]), "\n".join(lines).replace("\\", "\\\\"))
    lines = [f"{indent}{line}" if line else "" for line in f'"""{escaped.lstrip()}'.split("\n")]
    if len(lines) == 1:
        return [f'{lines[0]}"""']
    return [*lines, f'{indent}"""']


def _seen(character: str) -> str:
    """Return a character that can be seen; of a space that is none of ASCII's, a space."""
    if character.isprintable():
        return character
    return " " if character.isspace() else escape(character)


def described(comment: str, annotations: Annotations, *more: str) -> str:
    """Return the text of a docstring: a comment, what is said of it, and that it is deprecated."""
    texts = [comment.strip(), *more]
    deprecated = {each.name: each.value for each in annotations}.get("deprecated")
    if deprecated is not None:
        texts.append(f"Deprecated: {deprecated}" if deprecated.strip() else "Deprecated.")
    return "\n\n".join(each for each in texts if each)


def call(before: str, items: Sequence[str], after: str, indent: str = "") -> list[str]:
    """Return `before(items)after` on one line, or with each item on its own if that is too long.

    `before` ends with the opening bracket, `after` begins with the closing one.
    """
    line = f"{indent}{before}{', '.join(items)}{after}"
    if len(line) <= LINE_CHARS_MAX - _AROUND or not items:
        return [line]
    return [f"{indent}{before}", *(f"{indent}    {each}," for each in items), f"{indent}{after}"]


def indented(lines: Iterable[str], indent: str = "    ") -> list[str]:
    """Return lines with an indent, empty ones without."""
    return [f"{indent}{line}" if line else "" for line in lines]


def annotation_items(annotations: Annotations) -> list[str]:
    """Return the entries of a dict of annotations; of several with one name the last."""
    values = {each.name: each.value for each in annotations}
    return [f"{quoted(name)}: {quoted(value)}" for name, value in values.items()]
