"""Operations on whole streams, for programs: archive, backup, restore, verify, copy, relay, query, JetStream import.

The commands of the same names are over them.

    import penstock
    from penstock import ops

    with penstock.connect() as client, ops.Backup("/backups/penstock") as backup:
        backup.add(client)

Rules: an operation takes a client and plain values, and returns what it has done. It prints nothing and asks nothing:
what a user should hear meanwhile goes to a `Progress`. It can be interrupted and run again: it continues. Names are
imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.lake.archiving.job import Archived as Archived
    from penstock.ops.archive import ArchiveOptions as ArchiveOptions
    from penstock.ops.archive import archive_stream as archive_stream
    from penstock.ops.backup.adding import BackedUp as BackedUp
    from penstock.ops.backup.adding import BackedUpStream as BackedUpStream
    from penstock.ops.backup.adding import Backup as Backup
    from penstock.ops.backup.restoring import Restore as Restore
    from penstock.ops.backup.restoring import Restored as Restored
    from penstock.ops.backup.restoring import RestoredStream as RestoredStream
    from penstock.ops.backup.restoring import RestoreOptions as RestoreOptions
    from penstock.ops.backup.restoring import RestorePlan as RestorePlan
    from penstock.ops.backup.users import RestoredUsers as RestoredUsers
    from penstock.ops.backup.verifying import VerifiedBackup as VerifiedBackup
    from penstock.ops.backup.verifying import VerifiedConsumers as VerifiedConsumers
    from penstock.ops.backup.verifying import VerifiedPartition as VerifiedPartition
    from penstock.ops.backup.verifying import VerifiedSchemas as VerifiedSchemas
    from penstock.ops.backup.verifying import VerifiedUsers as VerifiedUsers
    from penstock.ops.backup.verifying import verify_backup as verify_backup
    from penstock.ops.copy import Copied as Copied
    from penstock.ops.copy import CopyOptions as CopyOptions
    from penstock.ops.copy import copy_stream as copy_stream
    from penstock.ops.errors import ArgumentError as ArgumentError
    from penstock.ops.errors import StoppedError as StoppedError
    from penstock.ops.jetstream.importing import Imported as Imported
    from penstock.ops.jetstream.importing import ImportOptions as ImportOptions
    from penstock.ops.jetstream.importing import JetStreamImport as JetStreamImport
    from penstock.ops.jetstream.source import UnstorableError as UnstorableError
    from penstock.ops.placed_rows import FutureTimes as FutureTimes
    from penstock.ops.progress import Progress as Progress
    from penstock.ops.query import QueryOptions as QueryOptions
    from penstock.ops.query import QueryResult as QueryResult
    from penstock.ops.query import query_streams as query_streams
    from penstock.ops.reading.places import LastMessages as LastMessages
    from penstock.ops.relay.relaying import Relay as Relay
    from penstock.ops.relay.relaying import RelayOptions as RelayOptions
    from penstock.ops.verify.files import verify_files as verify_files
    from penstock.ops.verify.results import DamagedPlace as DamagedPlace
    from penstock.ops.verify.results import Differing as Differing
    from penstock.ops.verify.results import Verified as Verified
    from penstock.ops.verify.results import VerifiedReplica as VerifiedReplica
    from penstock.ops.verify.streams import verify_streams as verify_streams

_MODULE_OF = {  # most used names first
    "Backup": "backup.adding",
    "Restore": "backup.restoring",
    "RestoreOptions": "backup.restoring",
    "RestorePlan": "backup.restoring",
    "verify_backup": "backup.verifying",
    "verify_streams": "verify.streams",
    "verify_files": "verify.files",
    "archive_stream": "archive",
    "ArchiveOptions": "archive",
    "copy_stream": "copy",
    "CopyOptions": "copy",
    "query_streams": "query",
    "QueryOptions": "query",
    "Relay": "relay.relaying",
    "RelayOptions": "relay.relaying",
    "JetStreamImport": "jetstream.importing",
    "ImportOptions": "jetstream.importing",
    "Progress": "progress",
    "FutureTimes": "placed_rows",
    "LastMessages": "reading.places",
    "BackedUp": "backup.adding",
    "BackedUpStream": "backup.adding",
    "Restored": "backup.restoring",
    "RestoredStream": "backup.restoring",
    "RestoredUsers": "backup.users",
    "VerifiedBackup": "backup.verifying",
    "VerifiedConsumers": "backup.verifying",
    "VerifiedPartition": "backup.verifying",
    "VerifiedSchemas": "backup.verifying",
    "VerifiedUsers": "backup.verifying",
    "Verified": "verify.results",
    "VerifiedReplica": "verify.results",
    "DamagedPlace": "verify.results",
    "Differing": "verify.results",
    "QueryResult": "query",
    "Copied": "copy",
    "Imported": "jetstream.importing",
    "Archived": "archive",
    "ArgumentError": "errors",
    "StoppedError": "errors",
    "UnstorableError": "jetstream.source",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock.ops' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.ops.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
