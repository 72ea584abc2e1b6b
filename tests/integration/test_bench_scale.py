"""`penstock bench scale` with real brokers: a tiny run, of which no time is asserted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import OperationalError
from penstock.broker.supervision.child import serving
from penstock.client.blocking import client as blocking
from penstock_bench.experiments import scale
from penstock_bench.runs import reach
from tests.extent import each_change, needs_time


@needs_time
def test_a_small_run_measures_everything(tmp_path: Path) -> None:
    steps: list[str] = []
    sizes = scale.ScalePlan(streams=4, messages=40_000, short_messages=20_000)
    plan = msgspec.structs.replace(sizes, idle_seconds=0.05, settle_seconds=0.0, start_rounds=2)
    figures = plan.run(tmp_path, steps.append).figures
    assert len(steps) == plan.steps
    assert [one.name for one in figures if one.reach is not None] == []  # it is smaller than what has a goal
    (starts,) = [one for one in figures if one.name == "long-start-ratio"]
    assert starts.low is not None
    assert starts.high is not None
    assert starts.low <= starts.got <= starts.high
    assert all(one.got > 0 for one in figures if one.name not in {"idle-cpu", "idle-memory"})


def test_only_what_the_goals_are_about_is_judged() -> None:
    plans = (scale.ScalePlan(), reach.planned(short=True).scale, scale.ScalePlan(streams=9_999))
    assert [(plan.has_idle_goals, plan.has_long_goals) for plan in plans] == [
        (True, True),
        (True, False),
        (False, True),
    ]


@each_change
def test_a_look_up_that_finds_another_place_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    scale.make_long(folder, 20_000)
    with pytest.raises(OperationalError, match="a look-up by time found offset"):
        scale.lookups({"long": (folder, 1_000)}, kind="time")  # as if the log ended there


def test_a_moment_is_that_of_a_batch() -> None:
    found = [scale.first_at(place, 40_000) for place in (0, 1, 16_384, 16_385, 32_768, 32_769)]
    assert found == [0, 16_384, 16_384, 32_768, 32_768, 40_000]


@needs_time
def test_what_is_made_is_what_a_broker_serves(tmp_path: Path) -> None:
    scale.make_streams(tmp_path / "many", 3)
    scale.make_long(tmp_path / "long", 20_000)
    options = ("--listen", "127.0.0.1:0", "--nats-port", "0")
    with serving(tmp_path / "many", *options) as ready, blocking.connect(ready.client) as client:
        infos = client.streams()
        assert [info.name for info in infos] == ["stream-00000", "stream-00001", "stream-00002"]
        assert {info.partitions[0].state for info in infos} == {"online"}
        assert {info.partitions[0].committed_end for info in infos} == {3}
    with serving(tmp_path / "long", *options) as ready, blocking.connect(ready.client) as client:
        assert client.to_table("long").num_rows == 20_000
