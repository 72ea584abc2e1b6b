"""Decodes text files and environment variables: strips byte order marks and trailing line ends."""

from __future__ import annotations

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def text_of(data: bytes) -> str:
    """Return the text of a file without its byte order mark. ValueError if it is UTF-16 or no text."""
    if data.startswith(_UTF16_MARKS):
        raise ValueError("it is UTF-16, as PowerShell's > writes it: save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it holds no text in UTF-8") from None


def value_of_variable(value: str) -> str:
    """Return the value of an environment variable without the line end that `echo` puts behind a secret."""
    return value.rstrip("\r\n")
