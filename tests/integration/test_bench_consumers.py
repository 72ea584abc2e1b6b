"""`penstock bench consumers`: a small run of both systems, and what reads and acks in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.experiments.consumers import experiment
from penstock_bench.load.acking_reader import AckingReader
from penstock_bench.systems.api_servers import JETSTREAM, PENSTOCK
from tests.acked_consumers import ARE_SERVED
from tests.broker_process import running_nats
from tests.extent import needs_time


@needs_time
@pytest.mark.parametrize("replicas", [1, 3])
def test_both_systems_are_measured(tmp_path: Path, replicas: int) -> None:
    plan = experiment(messages=3_000, consumers=10, replicas=replicas, seconds=1.0, rounds=1)
    found = plan.run(tmp_path, lambda _: None)
    names = {figure.name for figure in found.figures}
    if ARE_SERVED:
        assert found.notes == ()
        assert names == {row.name for row in plan.rows}
    else:
        assert names == {row.name for row in plan.rows if row.of == JETSTREAM}
        (note,) = found.notes
        assert note.startswith(PENSTOCK)
    assert all(figure.got > 0 for figure in found.figures if figure.name.endswith(("-pull", "-fan", "-recovery")))


def test_an_answer_that_is_no_message_ends_the_run(tmp_path: Path) -> None:
    with running_nats(tmp_path) as nats, AckingReader(Address("127.0.0.1", nats.port), timeout_s=60) as reader:
        with pytest.raises(OperationalError, match=r"instead of messages came: NATS/1\.0 503"):
            reader.pull_all("nobody.serves.this", 10, 5, 60)
        assert reader.received == 0
