"""Inputs that are kept: the small ones of the repository, which reach all that is reached, and those of the build.

A file is one input, named by what it holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "corpus"
INPUTS_MAX = 40
"""Of one target in the repository."""
BYTES_MAX = 48_000
"""Of one of them; what only a longer one reaches, a run has to make anew."""
OTHER_BYTES_MAX = 512


def name_of(data: bytes) -> str:
    """The name of an input's file."""
    return hashlib.sha256(data).hexdigest()[:12]


def read(target: str, folder: str | None = None) -> list[bytes]:
    """All that are kept of a target, those in `folder` behind those of the repository."""
    folders = [KEPT / target, *([] if folder is None else [Path(folder)])]
    return [path.read_bytes() for one in folders for path in sorted(one.glob("*"))]


def write(folder: Path, inputs: Iterable[bytes]) -> None:
    """Put inputs there that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        path = folder / name_of(data)
        if not path.exists():
            path.write_bytes(data)


def minimised(inputs: Sequence[tuple[bytes, frozenset[Any]]], others: Iterable[bytes] = ()) -> list[bytes]:
    """As few of these as run all that they run together, small ones first; then the smallest of `others`.

    INPUTS_MAX at most, and of the others none that is longer than OTHER_BYTES_MAX.
    """
    out: list[bytes] = []
    waiting = [one for one in inputs if len(one[0]) <= BYTES_MAX]
    left = set().union(*(arcs for _, arcs in waiting))
    while left and waiting and len(out) < INPUTS_MAX:
        best = max(waiting, key=lambda one: (len(one[1] & left), -len(one[0])))
        if not best[1] & left:
            break
        waiting.remove(best)
        left -= best[1]
        out.append(best[0])
    rest = sorted(
        {data for data in others if len(data) <= OTHER_BYTES_MAX} - {*out}, key=lambda data: (len(data), data)
    )
    return [*out, *rest[: max(0, INPUTS_MAX - len(out))]]
