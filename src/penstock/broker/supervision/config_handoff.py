"""A broker's config as one line of JSON, passed by a supervisor to its broker through a pipe.

Rules: the config is parsed already and arrives unchanged: nothing is read twice, and secrets are in no command line and
in no environment.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from penstock.broker.config.config import BrokerConfig


class ConfigHandoff(msgspec.Struct, frozen=True):
    """Start-up data of a broker under a supervisor."""

    config: BrokerConfig
    cpu: int | None = None  # the core to pin to
    colour: bool = False  # True if its log ends up on a terminal


def encode(handed: ConfigHandoff) -> bytes:
    """Return the line, with its line end."""
    return msgspec.json.encode(handed, enc_hook=_plain) + b"\n"


def decode(line: bytes) -> ConfigHandoff:
    """Parse the line; raise msgspec.DecodeError if it is invalid."""
    return msgspec.json.decode(line, type=ConfigHandoff, dec_hook=_typed)


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    assert isinstance(value, Path)
    return str(value)


def _typed(kind: Any, value: Any) -> Any:
    assert kind is Path
    return Path(value)
