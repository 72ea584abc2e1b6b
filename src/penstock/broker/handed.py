"""A broker's config as one line of JSON, handed by a supervisor to its broker through a pipe.

Rules: it is parsed already, and says the same at the other end: nothing is read twice, and secrets are in no command
line and in no environment.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from penstock.broker.config import BrokerConfig


class Handed(msgspec.Struct, frozen=True):
    """What a broker under a supervisor begins with."""

    config: BrokerConfig
    cpu: int | None = None  # the core to stay on
    colour: bool = False  # whether its log ends up on a terminal


def encode(handed: Handed) -> bytes:
    """One line, with its end."""
    return msgspec.json.encode(handed, enc_hook=_plain) + b"\n"


def decode(line: bytes) -> Handed:
    """The other way. msgspec.DecodeError: it is no such line."""
    return msgspec.json.decode(line, type=Handed, dec_hook=_typed)


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    assert isinstance(value, Path)
    return str(value)


def _typed(kind: Any, value: Any) -> Any:
    assert kind is Path
    return Path(value)
