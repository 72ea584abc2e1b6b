"""`penstock bench many` with real brokers: what idle streams hold is counted, and no time is asserted."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.base.limits import LOG_IDLE_MS
from penstock_bench.experiments import many
from penstock_bench.load.generator import Load
from tests.extent import needs_time

STREAMS = 300


@needs_time
def test_idle_streams_hold_nothing_and_the_loss_of_a_broker_loses_nothing(tmp_path: Path) -> None:
    steps: list[str] = []
    load = Load(messages=1_000, window=100, seconds_max=1.0)
    settle_seconds = 1.5 * LOG_IDLE_MS / 1_000
    plan = many.ManyStreamsPlan(STREAMS, idle_seconds=1.0, settle_seconds=settle_seconds, load=load)
    found = many.measure(plan, tmp_path, steps.append)
    assert len(steps) == plan.steps
    for number, before in found.empty.held.items():
        after = found.many.held[number]
        assert after.threads == before.threads
        assert after.files <= before.files + 2  # `__offsets`, and none for a stream
        assert after.sockets <= before.sockets + 1  # the client's, wherever it is
    over = found.failover
    assert over.led >= STREAMS // 3
    assert len(over.seconds) == over.led  # each of them took a message again
    assert over.acked == over.read_back >= STREAMS + over.led
    figures = {one.name: one for one in many.figures(plan, found)}
    assert figures["lost"].got == 0
    assert [one.name for one in figures.values() if one.reach is not None] == []  # fewer than what has a goal


def test_goals_are_about_as_many_as_they_name() -> None:
    plan = many.ManyStreamsPlan()
    assert plan.has_goals
    assert not msgspec.structs.replace(plan, streams=9_999).has_goals
