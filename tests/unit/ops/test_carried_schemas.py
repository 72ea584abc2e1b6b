"""Schemas carried over to another stream: the versions that it gets, and the notes in place of failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.client.blocking.client import Client
from penstock.client.errors import InvalidSchema, NotAuthorized, Unavailable
from penstock.messages import StreamInfo
from penstock.ops.carried_schemas import read_schemas, register_schemas
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from penstock.schemas.thrift import ThriftProtocol
from tests.unit.ops.backup.test_schemas import version

INFO = StreamInfo(stream_id=StreamId(7), config=StreamConfig(name="copy", subject="orders.>"))
TIMEOUT_S = 3.0


class Registry:
    """The schemas of one stream, behind the two calls of a client that are used. `errors`: of a subject's register."""

    def __init__(self, *held: SchemaVersion, errors: Mapping[str, Exception] | None = None) -> None:
        self.held = list(held)
        self.errors = errors or {}
        self.hidden: Exception | None = None

    def schemas(self, stream: StreamInfo, *, timeout: float) -> StreamSchemas:
        assert (stream, timeout) == (INFO, TIMEOUT_S)
        if self.hidden is not None:
            raise self.hidden
        ordered = sorted(self.held, key=lambda one: (one.typed.subject, one.number))
        return StreamSchemas(INFO.name, INFO.stream_id, tuple(ordered))

    def register_schema(
        self,
        stream: StreamInfo,
        schema: Schema,
        *,
        subject: str,
        message: str,
        framing: ValueFraming,
        protocol: ThriftProtocol,
        force: bool,
        timeout: float,
    ) -> None:
        assert (stream, force, timeout) == (INFO, True, TIMEOUT_S)
        if subject in self.errors:
            raise self.errors[subject]
        number = 1 + sum(one.typed.subject == subject for one in self.held)
        made = version(number, subject=subject)
        typed = Typed(subject, message, framing, protocol)
        self.held.append(replace(made, typed=typed, schema=schema, hash=schema.hash()))


def carried(registry: Registry, *versions: SchemaVersion) -> tuple[int, list[str]]:
    notes: list[str] = []
    count = register_schemas(cast(Client, registry), INFO, versions, TIMEOUT_S, notes.append)
    return count, notes


def identities(versions: list[SchemaVersion]) -> list[tuple[Any, ...]]:
    return [(one.typed, one.number, one.hash) for one in versions]


def test_all_versions_come_in_order_as_they_were_and_only_once() -> None:
    registry, typed = Registry(), Typed("b", "Placed", ValueFraming.MESSAGE, ThriftProtocol.COMPACT)
    # The third version is the first one, put on top again.
    wanted = [version(1, subject="a"), version(2, "x", "a"), version(3, subject="a"), replace(version(1), typed=typed)]
    assert carried(registry, *wanted) == (4, [])
    assert identities(registry.held) == identities(wanted)
    assert carried(registry, *wanted) == (0, [])
    assert identities(registry.held) == identities(wanted)


def test_a_run_that_was_cut_short_is_continued_and_later_versions_stay() -> None:
    wanted = [version(1), version(2, "x"), version(3, "y")]
    for held in range(4):
        registry = Registry(*wanted[:held])
        assert carried(registry, *wanted) == (3 - held, [])
        assert identities(registry.held) == identities(wanted)
    registry = Registry(*wanted)
    assert carried(registry, *wanted[:2]) == (0, [])
    assert registry.held == wanted


def test_a_pattern_with_other_versions_stays_and_the_next_one_is_carried() -> None:
    registry = Registry(version(1, "other", "a"))
    count, notes = carried(registry, version(1, subject="a"), version(2, "x", "a"), version(1, subject="b"))
    assert (count, [one.typed.subject for one in registry.held]) == (1, ["a", "b"])
    (note,) = notes
    assert note.startswith("note: stream copy does not get all schemas, for 1 pattern of subjects ('a'): it has other")


@pytest.mark.parametrize(
    "error",
    [
        NotAuthorized(ErrorCode.NOT_AUTHORIZED, "no rule allows it"),
        RemoteError(ErrorCode.UNSUPPORTED_VERSION, "broker 2 has version 0.3"),
        InvalidSchema(ErrorCode.INVALID_SCHEMA, "the stream stores 'bills'"),
        RemoteError(ErrorCode.TOO_LARGE, "20,000 at most"),
    ],
    ids=lambda error: error.code,
)
def test_what_is_refused_is_one_note(error: RemoteError) -> None:
    registry = Registry(errors=dict.fromkeys("abcd", error))
    count, notes = carried(registry, *(version(number, subject=subject) for subject in "abcde" for number in (1, 2)))
    assert (count, len(registry.held)) == (2, 2)
    text = "does not get all schemas, for 4 patterns of subjects ('a', 'b', 'c', …)"
    assert notes == [f"note: stream copy {text}: {error.message}"]


def test_schemas_that_cannot_be_read_are_one_note() -> None:
    registry = Registry()
    registry.hidden = RemoteError(ErrorCode.UNSUPPORTED_VERSION, "too old")
    assert carried(registry, version(1)) == (0, ["note: the schemas of stream copy are left out: too old"])
    assert carried(registry) == (0, [])  # nothing is asked for nothing
    notes: list[str] = []
    assert read_schemas(cast(Client, registry), INFO, TIMEOUT_S, notes.append) is None
    assert len(notes) == 1


def test_other_errors_end_the_run() -> None:
    gone = Unavailable("the broker stops")
    with pytest.raises(Unavailable):
        carried(Registry(errors={"orders.>": gone}), version(1))
    registry = Registry()
    registry.hidden = gone
    with pytest.raises(Unavailable):
        carried(registry, version(1))
