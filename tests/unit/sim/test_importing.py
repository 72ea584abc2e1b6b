"""The source of a simulated import, and what is noticed of rows that are not as they are there."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from penstock.base.ids import LeaderEpoch, Offset
from penstock.batch import codec
from penstock.messages import AppendAtResponse, FetchResponse, ListOffsetsResponse, Response
from penstock.testing.errors import ViolationError
from tests.sim.models.clients import SLOTS
from tests.sim.models.importing import NAME, ROWS, Importing, SourceRow, _message, _rows, drawn_source
from tests.sim.models.requests import Done
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

LOOK, READ = PlannedOperation(0, Act.IMPORT, 0, 1), PlannedOperation(0, Act.IMPORT, 0, 3)


class Told:
    """A program whose next request is answered so."""

    def __init__(self, response: Response, raw: bytes = b"") -> None:
        self.answer = response, raw

    def ask_leader(self, stream_id: int, partition: int, request: Any, done: Done, raw: bytes = b"") -> None:
        done(*self.answer)


def importing(response: Response, raw: bytes = b"") -> Importing:
    """An import that has a stream, and is answered so."""
    world = World(make_plan(1, 1, SLOTS)._replace(operations=(), faults=()))
    made = Importing(world._around, world.checks, lambda: Told(response, raw), Random(1))  # type: ignore[arg-type, return-value]
    world.checks.begin(made._config)
    made._stream_id = 9
    return made


def shown(raw: bytes, end: int) -> FetchResponse:
    return FetchResponse(
        log_start=Offset(0),
        committed_end=Offset(end),
        base_offset=Offset(0),
        end_offset=Offset(end),
        format_version=1,
        leader_epoch=LeaderEpoch(1),
    )


def test_a_source_has_gaps_and_times_that_never_go_back() -> None:
    rows = drawn_source(Random(1))
    offsets, times = [row.offset for row in rows], [row.timestamp_us for row in rows]
    assert len(rows) == ROWS
    assert offsets == sorted(set(offsets))
    assert offsets[-1] > ROWS
    assert times == sorted(times)
    assert len(set(times)) < ROWS


def test_a_batch_holds_rows_as_they_are_and_covers_what_is_missing() -> None:
    rows = drawn_source(Random(1))[:5]
    message = _message(rows, 0, rows[-1].offset + 3)
    header = codec.verify(message)
    assert (header.base_offset, header.end_offset) == (0, rows[-1].offset + 3)
    assert _rows(message) == rows


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda rows: rows[1:],
        lambda rows: [*rows[:-1], rows[-1]._replace(timestamp_us=rows[-1].timestamp_us + 1)],
        lambda rows: [*rows[:-1], rows[-1]._replace(value=b"another")],
        lambda rows: [rows[0]._replace(offset=rows[0].offset - 1), *rows[1:]],
    ],
    ids=["missing", "time", "value", "offset"],
)
def test_rows_that_are_not_those_of_the_source(spoilt: Any) -> None:
    source = importing(shown(b"", 0))._source
    rows, end = source[3:8], source[8].offset
    whole = _message(source[:3], 0, source[3].offset)
    sound = importing(shown(b"", end), whole + _message(rows, source[3].offset, end))
    sound._act(READ)
    assert sound._shown == end
    wrong: list[SourceRow] = spoilt(rows)
    with pytest.raises(ViolationError, match="the source has"):
        importing(shown(b"", end), whole + _message(wrong, source[3].offset, end))._act(READ)


def test_a_log_that_ends_where_no_batch_has_ended() -> None:
    source = importing(shown(b"", 0))._source
    gap = next(one.offset + 1 for one, behind in pairwise(source) if behind.offset > one.offset + 1)
    answer = ListOffsetsResponse(
        offset=Offset(gap), log_start=Offset(0), committed_end=Offset(gap), leader_epoch=LeaderEpoch(1)
    )
    with pytest.raises(ViolationError, match="no batch has ended"):
        importing(answer)._act(LOOK)


def test_an_answer_that_names_another_time() -> None:
    made = importing(shown(b"", 0))
    rows = made._source[:2]
    end = made._source[2].offset
    answer = AppendAtResponse(
        base_offset=Offset(0),
        end_offset=Offset(end),
        timestamp_us=rows[-1].timestamp_us + 1,
        leader_epoch=LeaderEpoch(1),
        fsynced=True,
    )
    with pytest.raises(ViolationError, match=f"{NAME}: rows up to {end} are said to be there"):
        made._stored(rows, end, answer)
