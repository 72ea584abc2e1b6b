"""Streams that keep what scopes publish: found, created if asked to, and checked.

| a stream                                  | for a durable scope                                              |
|-------------------------------------------|------------------------------------------------------------------|
| does not store the subject                | refused: the message would have no ack                           |
| acks nothing, or envelopes only           | refused to publish: no ack would come                            |
| has partitions by `publisher` or `mapped` | refused to publish: the messages would be on other subjects      |
| has partitions by `group`, is of a group  | no key, no message id: a repeated message may go to another log  |
| has partitions by `key`, `token`, `range` | as it is                                                         |
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.base.config import Acks
from penstock.base.partitioning import PartitionBy
from penstock.client.aio import Client
from penstock.client.errors import StreamExists, StreamNotFound
from penstock.frugal.contracts import OperationType, ScopeType
from penstock.frugal.scopes.subjects import ScopeSubjects
from penstock.messages import StreamInfo

_SUBJECTS_KEPT: Final = 1_024  # of which it is known that a stream stores them


class UnsuitableStreamError(ValueError):
    """A stream cannot keep what is published: the message says why, and what to do."""


class KeptStream:
    """A stream as a publisher knows it."""

    def __init__(self, info: StreamInfo) -> None:
        self.info = info
        self.competes = info.config.competes
        """True if a message goes to one of several logs at random."""
        self.is_grouped = info.config.group is not None
        """True if another stream may store a message in its place."""
        self._stored: set[str] = set()

    def check_subject(self, subject: str) -> None:
        """Raise UnsuitableStreamError unless the stream stores the subject as it is."""
        if subject in self._stored:
            return
        config = self.info.config
        if config.acks is not Acks.REPLY:
            text = f"stream {config.name} has acks={config.acks.value!r}, so a publish would wait for its ack in vain"
            raise UnsuitableStreamError(f"{text}; use acks='reply'")
        if config.split.has_subjects and config.partitions > 1:
            text = f"stream {config.name} has partitions by {config.split.how}, each on a subject of its own"
            raise UnsuitableStreamError(f"{text}, which subscribers of the scope do not hear; use partition_by='key'")
        if not config.stores(subject):
            stored = ", ".join(map(repr, config.subjects))
            text = f"stream {config.name} is on {stored}, and does not store {subject!r}"
            raise UnsuitableStreamError(f"{text}; name another stream, or create one with such a subject")
        if len(self._stored) >= _SUBJECTS_KEPT:
            self._stored.clear()
        self._stored.add(subject)

    def no_keys(self, operation: str) -> UnsuitableStreamError:
        """Return the error that a stream which `competes` keeps no order of keys."""
        config = self.info.config
        why = f"is in the group {config.group!r}" if config.group is not None else "has partitions by group"
        text = f"{operation} has a key, and stream {config.name} {why}: its messages go to a log at random"
        return UnsuitableStreamError(f"{text}, so those of a key would be in no order; use partition_by='key'")


class KeptStreams:
    """The streams of one client, each looked up once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[str, KeptStream] = {}
        self._looking = asyncio.Lock()

    def known(self, name: str) -> KeptStream | None:
        """Return a stream that was looked up."""
        return self._kept.get(name)

    def forget(self, name: str) -> None:
        """Look the stream up again next time: it is not what it was."""
        self._kept.pop(name, None)

    async def find(
        self, name: str, scope: ScopeType, subjects: ScopeSubjects, create: Mapping[str, Any] | None, timeout_s: float
    ) -> KeptStream:
        """Look a stream up; create it with the fields `create` if it does not exist and they are given.

        StreamNotFound, NotAuthorized, InvalidConfig, Unavailable, TimedOut.
        """
        async with self._looking:
            if (kept := self._kept.get(name)) is not None:
                return kept
            try:
                info = await self._client.stream(name, timeout=timeout_s)
            except StreamNotFound as error:
                if create is None:
                    subject = stream_fields(name, scope, subjects, {})["subject"]
                    error.add_note(
                        f"scope {scope.name} is kept by it: `penstock stream create {name} '{subject}'` creates it, "
                        f"and so does create={{}} of a publisher or subscriber, with fields of its config in it"
                    )
                    raise
                info = await self._create(name, stream_fields(name, scope, subjects, create), timeout_s)
            made = self._kept[name] = KeptStream(info)
            return made

    async def _create(self, name: str, fields: dict[str, Any], timeout_s: float) -> StreamInfo:
        subject = fields.pop("subject")
        try:
            return await self._client.create_stream(name, subject, timeout=timeout_s, **fields)
        except StreamExists:  # created by another publisher meanwhile
            return await self._client.stream(name, timeout=timeout_s)


def stream_fields(name: str, scope: ScopeType, subjects: ScopeSubjects, create: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a stream that is created for a scope.

    Its subject is that of the one operation that names the stream, or that of all operations of the scope. Several
    partitions are by what the annotation `partition_by` says, else by key. What `create` says counts.
    UnsuitableStreamError: a key has no order in such a stream.
    """
    naming: Sequence[OperationType] = [each for each in scope.operations.values() if each.stream == name]
    fields: dict[str, Any] = {
        "subject": subjects.everything(naming[0].name) if len(naming) == 1 else subjects.everything()
    }
    if create.get("partitions", 1) != 1:
        annotations = [*(each.annotations for each in naming), scope.annotations]
        named = [each.get("partition_by") for each in annotations]
        fields["partition_by"] = next((each for each in named if each), PartitionBy.KEY.value)
    fields.update(create)
    is_random = fields.get("group") is not None or (
        fields.get("partitions", 1) != 1 and fields.get("partition_by") == PartitionBy.GROUP
    )
    keyed = next((each.name for each in naming or scope.operations.values() if each.key), None)
    if is_random and keyed is not None:
        text = f"{scope.name}.{keyed} has a key, and a stream with partitions by group, or of a group, keeps no order"
        raise UnsuitableStreamError(f"{text} of its messages; use partition_by='key'")
    return fields
