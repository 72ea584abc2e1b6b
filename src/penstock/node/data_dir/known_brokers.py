"""Brokers that a data directory knows, to check a start against before anything is done.

Rules: nothing is changed or repaired. Data that cannot be read counts as unknown; the start itself reports it. Log
entries count whether they are committed or not: a broker that may have been admitted is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.base.errors import CorruptionError, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.commands import RegisterBroker, decode_command
from penstock.metadata.persistence.snapshot import decode_brokers
from penstock.raft.disk_state import stored_entries, stored_snapshot
from penstock.raft.membership import decode_membership
from penstock.raft.values import Entry, EntryKind
from penstock.vfs import Vfs

_REGISTERS = b"register_broker"  # in every such command, so other entries need not be decoded


class KnownBrokers(NamedTuple):
    """The brokers of the data directory's cluster, with their last registered addresses."""

    members: frozenset[BrokerId]  # members of the Raft group, and every broker that was ever registered
    addresses: Mapping[BrokerId, str]  # HOST:PORT of the registered brokers


def read_known_brokers(vfs: Vfs) -> KnownBrokers | None:
    """Return the brokers that the data directory knows; None if it belongs to no cluster yet. Blocking. OSError."""
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
        pass  # the start will report it
    members |= set(addresses)
    return KnownBrokers(frozenset(members), addresses) if members else None


def _take(entry: Entry, members: set[BrokerId], addresses: dict[BrokerId, str]) -> None:
    if entry.kind is EntryKind.MEMBERSHIP:
        membership = decode_membership(entry.data)
        members |= {*membership.voters, *membership.learners}
    elif entry.kind is EntryKind.COMMAND and _REGISTERS in entry.data:
        command = decode_command(entry.data)
        if isinstance(command, RegisterBroker):
            addresses[command.broker_id] = command.address
