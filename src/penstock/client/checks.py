"""What callers pass, checked before anything is sent; and said again in the types of the protocol."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.base.config import StreamConfig, stream_config_mistakes
from penstock.base.errors import ErrorCode
from penstock.base.ids import StreamId
from penstock.client.errors import InvalidConfig
from penstock.client.values import StreamName
from penstock.messages import StreamInfo

COLUMNS = ("offset", "timestamp", "subject", "key", "value", "headers")
"""The columns of the log, in order."""


def stream_config(fields: dict[str, Any]) -> StreamConfig:
    """A config from its fields; InvalidConfig lists every mistake."""
    try:
        config = msgspec.convert(fields, StreamConfig)
    except msgspec.ValidationError as error:
        raise InvalidConfig(ErrorCode.INVALID_CONFIG, str(error)) from None
    if mistakes := stream_config_mistakes(config):
        raise InvalidConfig(ErrorCode.INVALID_CONFIG, "\n".join(mistakes), mistakes=mistakes)
    return config


def name_and_id(stream: StreamName) -> tuple[str, StreamId | None]:
    """(name, id); the id is None where only the name is known."""
    return (stream.name, stream.stream_id) if isinstance(stream, StreamInfo) else (stream, None)


def wanted_columns(columns: Iterable[str] | None) -> list[str] | None:
    """The columns asked for, or None for all; ValueError for one that does not exist."""
    if columns is None:
        return None
    wanted = [columns] if isinstance(columns, str) else list(columns)
    if not wanted or not set(wanted) <= set(COLUMNS):
        raise ValueError(f"columns are {wanted}; there are {', '.join(COLUMNS)}")
    return wanted


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def require(package: str) -> None:
    """ImportError that says how to install `package`, unless it is there."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{package} is not installed; add it with: pip install 'penstock[{package}]'")
