"""`penstock bench scale` with real brokers: a tiny run, of which no time is asserted."""

from __future__ import annotations

from pathlib import Path

from penstock.bench import scale
from penstock.broker.child import serving
from penstock.client import blocking


def test_a_small_run_measures_everything(tmp_path: Path) -> None:
    steps: list[str] = []
    plan = scale.Plan(streams=4, messages=40_000, short_messages=20_000, idle_seconds=0.05, settle_seconds=0.0)
    figures = scale.run(plan, tmp_path, steps.append)
    assert len(steps) == scale.STEPS
    assert {one.name for one in figures if one.reach is not None} == {
        "idle-cpu",
        "idle-memory",
        "idle-start",
        "idle-start-killed",
        "long-start",
        "long-offset",
        "long-time",
    }
    assert all(one.got > 0 for one in figures if one.name not in {"idle-cpu", "idle-memory"})


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
