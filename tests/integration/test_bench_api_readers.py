"""`penstock bench api-readers`: a small run of both systems."""

from __future__ import annotations

from pathlib import Path

from penstock_bench.experiments.api_readers import Counted, experiment
from tests.extent import needs_time


@needs_time
def test_both_systems_are_measured(tmp_path: Path) -> None:
    said: list[str] = []
    found = experiment(messages=5_000, readers=20, seconds=1.0, rounds=1).run(tmp_path, said.append)
    assert found.notes == ()
    figures = {figure.name: figure.got for figure in found.figures}
    assert {"penstock-pull", "penstock-push", "jetstream-pull", "pull", "push-cpu", "penstock-p99"} <= {*figures}
    assert all(figures[f"{system}-{kind}"] > 0 for system in ("penstock", "jetstream") for kind in ("pull", "push"))


def test_deliveries_are_counted_across_the_ends_of_reads() -> None:
    message = b"MSG orders.eu 1 $JS.ACK.s.c.1.7.7.1.0 2\r\nhi\r\n"
    flow = b"HMSG _INBOX.x 1 $JS.FC.s.c.3 30 30\r\nNATS/1.0 100 FlowControl Request\r\n\r\n\r\n"
    data = message + flow + message
    for cut in range(len(data)):
        counted = Counted()
        counted.take(data[:cut])
        counted.take(data[cut:])
        assert (counted.messages, counted.flow) == (2, [b"$JS.FC.s.c.3"]), cut
