"""The example on Spark: a second run reads only what is new."""

from __future__ import annotations

from pathlib import Path

import penstock
from tests.broker_process import BrokerProcess
from tests.docs.test_examples import run_example
from tests.extent import needs_time

ORDER = '{{"customer": "{}", "total": {}}}'


@needs_time
def test_a_streaming_job_writes_each_order_once(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    client.create_stream("shop", "shop.>")
    client.append("shop", [{"subject": "shop.eu", "value": ORDER.format(*one)} for one in (("anna", 42), ("ben", 7))])
    folder = str(tmp_path / "totals")
    assert run_example(broker, "spark_stream.py", folder, warnings="ignore") == ["anna: 42", "ben: 7"]
    client.append("shop", [{"subject": "shop.eu", "value": ORDER.format("anna", 20)}])
    assert run_example(broker, "spark_stream.py", folder, warnings="ignore") == ["anna: 62", "ben: 7"]
