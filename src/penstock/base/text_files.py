"""Text as editors and shells of all systems write it: what begins a file, or ends it, is no part of what it says."""

from __future__ import annotations

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def text_of(data: bytes) -> str:
    """The text of a file without its byte order mark. ValueError: it is UTF-16, or no text."""
    if data.startswith(_UTF16_MARKS):
        raise ValueError("it is UTF-16, as PowerShell's > writes it: save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it holds no text in UTF-8") from None


def value_of_variable(value: str) -> str:
    """What a variable of the environment says: a secret that was made with `echo` has a line end, which is cut off."""
    return value.rstrip("\r\n")
