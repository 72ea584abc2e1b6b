"""Whom a data directory knows: what a start is held against before anything is done.

Rules: nothing is changed, and nothing is repaired. Whatever cannot be read is not known here; the start itself says
what is wrong with it. What is in the log counts, committed or not: whoever may have been let in is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.base.errors import CorruptionError, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.commands import RegisterBroker, decode_command
from penstock.metadata.snapshot import decode_brokers
from penstock.raft.membership import decode_membership
from penstock.raft.stored import stored_entries, stored_snapshot
from penstock.raft.values import Entry, EntryKind
from penstock.vfs import Vfs

_REGISTERS = b"register_broker"  # in every such command: the others need not be decoded


class Known(NamedTuple):
    """The brokers of the cluster that a data directory is of, and where each was registered last."""

    members: frozenset[BrokerId]  # who takes part in the metadata, and whoever was ever registered
    addresses: Mapping[BrokerId, str]  # HOST:PORT of those who were registered


def known_brokers(vfs: Vfs) -> Known | None:
    """Whom the directory knows; None if it is of no cluster yet. Blocking. OSError."""
    members: set[BrokerId] = set()
    addresses: dict[BrokerId, str] = {}
    try:
        snapshot = stored_snapshot(vfs)
        if snapshot is not None:
            members |= {*snapshot.membership.voters, *snapshot.membership.learners}
            if snapshot.data:
                addresses |= {one.broker_id: one.address for one in decode_brokers(snapshot.data)}
        for entry in stored_entries(vfs):
            _take(entry, members, addresses)
    except (CorruptionError, RemoteError, msgspec.DecodeError):
        pass  # the start will say so
    members |= set(addresses)
    return Known(frozenset(members), addresses) if members else None


def _take(entry: Entry, members: set[BrokerId], addresses: dict[BrokerId, str]) -> None:
    if entry.kind is EntryKind.MEMBERSHIP:
        membership = decode_membership(entry.data)
        members |= {*membership.voters, *membership.learners}
    elif entry.kind is EntryKind.COMMAND and _REGISTERS in entry.data:
        command = decode_command(entry.data)
        if isinstance(command, RegisterBroker):
            addresses[command.broker_id] = command.address
