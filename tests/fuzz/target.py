"""A target: a decoder that faces a socket or a file, how its inputs are made, and what must hold of every one of them.

Rules: an input is bytes, and nothing but them decides what comes of it. `run` catches what the decoder declares that it
raises, and nothing else: any other exception is a finding, and so is an assertion. What it returns is plain data that
is the same in both modes of the hot path; what looks unlike everything before is kept, to be changed further.

A target in a few lines:

    TARGET = Target(
        name="checkpoint",
        run=checkpoint,                              # (modules, data) -> what came of it
        make=made_checkpoint,                        # (chance) -> an input that is sound, or nearly
        covers=(Cover("penstock.commitlog.files.checkpoint", ("unpack_slot", "read")),),
        seal=sealed,                                 # (data) -> the same with its checksums put right
    )

and its module in the list of `tests.fuzz.targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import ModuleType

Modules = Callable[[str], ModuleType]
"""A module of the hot path by its name, in one of the two modes."""

INPUT_BYTES_MAX = 8_192
"""Of an input that was changed; one that was just made may be longer."""

INPUT_SECONDS_MAX = 0.5
"""Of CPU, for one input: a hundred times what the slowest decoder takes for INPUT_BYTES_MAX."""

MEMORY_BYTES_BASE = 2 * 1024 * 1024
MEMORY_BYTES_PER_BYTE = 200
"""What the decoding of an input may take at once of Python's memory: a fixed part, and so much for each byte of it."""


@dataclass(frozen=True)
class Cover:
    """The code that a target is for.

    `names`: functions and classes of the module, by their qualified names; none: all. `but`: what of it no input
    reaches, with the reason.
    """

    module: str
    names: tuple[str, ...] = ()
    but: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """See the module."""

    name: str
    run: Callable[[Modules, bytes], object]
    make: Callable[[Random], bytes]
    covers: tuple[Cover, ...]
    seal: Callable[[bytes], bytes] | None = None
    pieces: tuple[bytes, ...] = ()  # what the format knows, for mutations to put in
    compares: bool = False  # it takes the modules that it is given: compiled and plain must come to the same
    memory_bytes: int = MEMORY_BYTES_BASE
    is_slow: bool = False  # one input is a life of a log or of a broker
