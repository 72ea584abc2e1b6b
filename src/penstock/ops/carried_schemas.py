"""The schemas of a stream, carried over to another one: from a backup, or from the source of a copy.

Rules: the other stream gets what it lacks of each pattern of subjects, older versions first, so that they have the same
numbers; a run that is repeated adds nothing twice. A version was judged when it was first registered, and is not judged
again: it is forced, so that rules of another version of Penstock refuse no history. A pattern with other versions in
the other stream stays as it is. Rows are more than their schemas: what is not allowed, not possible or not known to an
older broker is a note, not a failure. The user and the time of a version are those of the new registration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.units import counted

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.messages import StreamInfo
    from penstock.schemas.registry import SchemaVersion, StreamSchemas

_NOTED = (
    ErrorCode.NOT_AUTHORIZED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_SCHEMA,  # its subjects overlap others in the other stream
    ErrorCode.TOO_LARGE,  # a limit of the registry
    ErrorCode.QUOTA_EXCEEDED,
)
_NAMED_MAX = 3  # patterns in one note

Note = Callable[[str], None]


def read_schemas(client: Client, info: StreamInfo, timeout_s: float, note: Note) -> StreamSchemas | None:
    """Return a stream's schemas, all versions; None: they cannot be had, which is noted."""
    try:
        return client.schemas(info, timeout=timeout_s)
    except RemoteError as error:
        if error.code not in _NOTED:
            raise
        note(f"note: the schemas of stream {info.name} are left out: {error.message}")
        return None


def register_schemas(
    client: Client, info: StreamInfo, versions: Sequence[SchemaVersion], timeout_s: float, note: Note
) -> int:
    """Register what the stream lacks of these versions, which are in order by pattern and number; return how many."""
    if not versions or (there := read_schemas(client, info, timeout_s, note)) is None:
        return 0
    added, refused = 0, dict[str, str]()
    for subject, group in groupby(versions, key=lambda one: one.typed.subject):
        wanted, held = list(group), [one for one in there.versions if one.typed.subject == subject]
        if any(_identity(one) != _identity(other) for one, other in zip(wanted, held, strict=False)):
            refused[subject] = "it has other versions there, which stay as they are"
            continue
        try:
            for version in wanted[len(held) :]:
                _register(client, info, version, timeout_s)
                added += 1
        except RemoteError as error:
            if error.code not in _NOTED:
                raise
            refused[subject] = error.message
    if refused:
        named = ", ".join(map(repr, list(refused)[:_NAMED_MAX])) + (", …" if len(refused) > _NAMED_MAX else "")
        text = f"note: stream {info.name} does not get all schemas, for {counted(len(refused), 'pattern')} of subjects"
        note(f"{text} ({named}): {next(iter(refused.values()))}")
    return added


def _identity(version: SchemaVersion) -> tuple[object, ...]:
    return version.typed, version.hash


def _register(client: Client, info: StreamInfo, version: SchemaVersion, timeout_s: float) -> None:
    typed = version.typed
    client.register_schema(
        info,
        version.schema,
        subject=typed.subject,
        message=typed.message,
        framing=typed.framing,
        protocol=typed.protocol,
        force=True,
        timeout=timeout_s,
    )
