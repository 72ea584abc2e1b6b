"""The commands of the metadata log: everything that can change what the cluster agrees on.

Rules: a command holds all that its effect depends on, the time included, so that every broker that folds the same
commands gets the same image. A command type never changes its meaning; new needs get new types or defaulted fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId


class CreateStream(msgspec.Struct, frozen=True, kw_only=True, tag="create_stream"):
    """Make a stream; its id is the command's index."""

    config: StreamConfig
    created_us: int
    assignments: tuple[tuple[BrokerId, ...], ...] = ()  # the replicas of each partition; none: all on the first broker


class AlterStream(msgspec.Struct, frozen=True, kw_only=True, tag="alter_stream"):
    """Change fields of a stream's config."""

    stream_id: int
    changes: dict[str, Any]


class DeleteStream(msgspec.Struct, frozen=True, kw_only=True, tag="delete_stream"):
    """Delete a stream."""

    stream_id: int


class StartBroker(msgspec.Struct, frozen=True, kw_only=True, tag="start_broker"):
    """A broker has started: every partition that it leads begins a new leader epoch."""

    started_us: int


Command = CreateStream | AlterStream | DeleteStream | StartBroker

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """MessagePack, tagged with the command's type."""
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """The command in `data`; msgspec.DecodeError if it is none that this version knows."""
    command: Command = _decoder.decode(data)
    return command
