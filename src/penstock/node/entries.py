"""What an entry of the metadata log says."""

from __future__ import annotations

import msgspec

from penstock.metadata.commands import Command, decode_command
from penstock.raft import Entry, EntryKind


def command_in(entry: Entry) -> Command | None:
    """Its command; None if it is of another kind, or its command is none that this version knows."""
    if entry.kind is not EntryKind.COMMAND:
        return None
    try:
        return decode_command(entry.data)
    except msgspec.DecodeError:
        return None
