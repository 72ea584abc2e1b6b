"""What the model of the schema registry notices: versions that change, are lost, come back, or were refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, TimestampUs
from penstock.messages import (
    AppendResponse,
    ForgetSchemasResponse,
    ListSchemasResponse,
    RegisteredSchema,
    RegisterSchemasResponse,
    Response,
    SchemaInfo,
)
from penstock.testing.errors import ViolationError
from tests.sim.models.client_state import StreamGeneration
from tests.sim.models.clients import SLOTS
from tests.sim.models.registering import KIND, Life, Registering
from tests.sim.models.requests import Done
from tests.sim.plan.plan import make_plan
from tests.sim.run.world import World

STREAM = 9


class Told:
    """A program whose requests are answered with these responses, in order."""

    def __init__(self) -> None:
        self.responses: list[Response | RemoteError] = []

    def ask_leader(self, stream_id: int, partition: int, request: Any, done: Done, raw: bytes = b"") -> None:
        done(self.responses.pop(0), b"")

    def ask(self, request: Any, done: Done) -> None:
        """Leave it without an answer."""


class Registry:
    """A model that has a stream with one pattern, and is answered as a test says."""

    def __init__(self) -> None:
        world = World(make_plan(1, 1, SLOTS)._replace(operations=(), faults=()))
        self.told = Told()
        self.model = Registering(world._around, world.checks, world._refusals, lambda: self.told, Random(1))  # type: ignore[arg-type, return-value]
        self.model.create()
        assert self.model._config is not None
        self.model._stream_id, self.model._kept_in = STREAM, STREAM + 1
        self.model.generations.append(StreamGeneration(self.model._config, STREAM))
        self.model._begin()
        self._scheduler = world._scheduler

    @property
    def life(self) -> Life:
        return self.model._lives[0]

    def later(self) -> None:
        """Let the time pass that a deposed leader may answer."""
        self._scheduler.run_until(self._scheduler.now_us + 10_000_000)

    def registers(self, number: int, kind: str = "integer", answer: RemoteError | None = None) -> str:
        """Register a new schema, which gets that number, or that error; return the hash of its text."""
        text_hash = self.model._new_text(kind)
        there = RegisteredSchema(version=self.info(number, text_hash), is_new=True)
        self.told.responses.append(answer or RegisterSchemasResponse(versions=(there,)))
        self.model._register(self.life, text_hash)
        return text_hash

    def info(self, number: int, text_hash: str) -> SchemaInfo:
        return SchemaInfo(
            subject=self.life.pattern,
            number=number,
            kind=KIND,
            text_hash=text_hash,
            hash=text_hash,
            registered_us=TimestampUs(0),
        )

    def lists(self, *hashes: str) -> None:
        versions = tuple(self.info(number, one) for number, one in enumerate(hashes, 1))
        self.told.responses.append(ListSchemasResponse(versions=versions))
        self.model._list()


def test_a_list_of_what_was_acked_is_right_and_a_missing_version_is_noticed_once_no_deposed_leader_answers() -> None:
    registry = Registry()
    first, second = registry.registers(1), registry.registers(2)
    registry.lists(first, second)
    registry.lists(first)
    registry.later()
    with pytest.raises(ViolationError, match=r"version 2 of .* was acked, and is not listed"):
        registry.lists(first)


def test_a_number_with_two_texts_and_a_text_with_two_numbers_are_noticed() -> None:
    registry = Registry()
    first = registry.registers(1)
    with pytest.raises(ViolationError, match="version 1 of"):
        registry.registers(1)
    with pytest.raises(ViolationError, match="one text as several versions"):
        registry.lists(first, first)


def test_a_refused_schema_that_is_listed_is_noticed() -> None:
    registry = Registry()
    first = registry.registers(1)
    refused = registry.registers(2, "string", RemoteError(ErrorCode.INCOMPATIBLE_SCHEMA, "it is another type"))
    with pytest.raises(ViolationError, match="was refused: it is another type"):
        registry.lists(first, refused)


def test_an_incompatible_schema_that_is_registered_and_a_compatible_one_that_is_refused_are_noticed() -> None:
    registry = Registry()
    registry.registers(1)
    with pytest.raises(ViolationError, match="an incompatible schema is version 2"):
        registry.registers(2, "string")
    with pytest.raises(ViolationError, match="a compatible schema is refused"):
        registry.registers(3, answer=RemoteError(ErrorCode.INCOMPATIBLE_SCHEMA, "it is another type"))


def test_an_unanswered_schema_may_be_listed_or_not() -> None:
    registry = Registry()
    first = registry.registers(1)
    late = registry.registers(2, answer=RemoteError(ErrorCode.OUTCOME_UNKNOWN, "the leader changed"))
    registry.later()
    registry.lists(first)
    registry.lists(first, late)
    registry.told.responses.append(ListSchemasResponse(versions=(registry.info(2, late),)))
    with pytest.raises(ViolationError, match=r"has the versions \[2\]"):
        registry.model._list()


def test_a_forgotten_version_that_is_listed_is_noticed() -> None:
    registry = Registry()
    first = registry.registers(1)
    registry.told.responses.append(ForgetSchemasResponse(versions=1))
    registry.model._forget(registry.life)
    registry.lists(first)  # by a deposed leader
    registry.later()
    with pytest.raises(ViolationError, match="was forgotten, and has"):
        registry.lists(first)


def test_schemas_of_another_stream_are_noticed() -> None:
    registry = Registry()
    info = SchemaInfo(
        subject="other", number=1, kind=KIND, text_hash="a" * 64, hash="a" * 64, registered_us=TimestampUs(0)
    )
    registry.told.responses.append(ListSchemasResponse(versions=(info,)))
    with pytest.raises(ViolationError, match=r"schemas of another stream: \['other'\]"):
        registry.model._list()


def published(registry: Registry, response: Response | RemoteError, *, is_fitting: bool) -> None:
    registry.told.responses.append(response)
    registry.model._sent = registry.model._sent // 4 * 4 + 5  # the next message is an append
    registry.model._publish(registry.life, is_fitting=is_fitting)


def test_a_value_that_a_new_leader_stores_although_it_does_not_fit_is_noticed() -> None:
    registry = Registry()
    registry.registers(1)
    registry.later()
    assert registry.model._config is not None
    history = registry.model._checks.of(registry.model._config.subject, 0)
    history.led_us = {1: 0, 2: registry._scheduler.now_us}
    refused = RemoteError(ErrorCode.SCHEMA_MISMATCH, "it does not fit")

    def stored(epoch: int) -> AppendResponse:
        return AppendResponse(
            base_offset=Offset(0),
            end_offset=Offset(1),
            timestamp_us=TimestampUs(0),
            leader_epoch=LeaderEpoch(epoch),
            fsynced=True,
        )

    published(registry, refused, is_fitting=False)
    with pytest.raises(ViolationError, match="is stored at 0, and does not fit"):
        published(registry, stored(2), is_fitting=False)
    with pytest.raises(ViolationError, match="fits, and is refused"):
        published(registry, refused, is_fitting=True)
