"""Locate a program's position: the current line of its own code, and the line below in which it waits."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

_LOOP = "penstock.testing.loop"  # frames below it do not belong to the program
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle")
_PACKAGE = str(Path(__file__).parents[1])
_NOT_THEIRS = tuple(folder + os.sep for folder in (_PACKAGE, *map(sysconfig.get_path, ("stdlib", "platstdlib"))))


def of_coroutine(work: Any) -> str:
    """Return FILE:LINE at which a coroutine waits: in the program's own code, and in the innermost frame."""
    places = []
    where = work
    while where is not None:
        frame = getattr(where, "cr_frame", None) or getattr(where, "gi_frame", None)
        if frame is not None:
            places.append((frame.f_code.co_filename, frame.f_lineno))
        where = getattr(where, "cr_await", None) or getattr(where, "gi_yieldfrom", None)
    return _text(reversed(places))


def of_frame(frame: FrameType) -> str:
    """Return FILE:LINE of a running frame, in the same form."""
    places = []
    where: FrameType | None = frame
    while where is not None and where.f_globals.get("__name__") != _LOOP:
        places.append((where.f_code.co_filename, where.f_lineno))
        where = where.f_back
    return _text(places)


def is_debugged(frame: FrameType) -> bool:
    """True if a debugger is active in this frame or its callers."""
    where: FrameType | None = frame
    while where is not None:
        if str(where.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
            return True
        where = where.f_back
    return False


def _text(places: Iterable[tuple[str, int]]) -> str:
    """Format the places; the innermost is first."""
    found = list(places)
    if not found:
        return "somewhere"
    theirs = next((one for one in found if _is_theirs(one[0])), found[-1])
    return " in ".join(f"{file}:{line}" for file, line in dict.fromkeys((found[0], theirs)))


def _is_theirs(file: str) -> bool:
    return not (file.startswith((*_NOT_THEIRS, "<frozen")) or "site-packages" in file)
