"""How results are said: the same words and digits on a terminal and on a page."""

from __future__ import annotations


def minutes_text(seconds: float) -> str:
    """`40 seconds`, `1 minute`, `8 minutes`: as exact as anybody needs it."""
    if seconds < 60:
        return _counted(max(1, round(seconds)), "second")
    return _counted(round(seconds / 60), "minute")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
