"""The programs in examples/ run against a broker and print what they should; each is short enough to copy."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests import warm
from tests.broker_process import BrokerProcess, broker_environment, running_broker
from tests.extent import each_change

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
LINES_MAX = 60
LINES = [json.dumps({"customer": f"c{number % 3}", "total": number}) for number in range(250)]
TIMEOUT_S = 240


def run_example(broker: BrokerProcess, name: str, *arguments: str, warnings: str = "error") -> list[str]:
    """Run an example to its end; return the lines that it prints."""
    addresses = {"PENSTOCK_SERVER": broker.client_address, "NATS_URL": broker.nats_url}
    done = subprocess.run(
        [sys.executable, "-W", warnings, str(EXAMPLES / name), *arguments],
        env=broker_environment({}) | addresses,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (name, done.stdout, done.stderr)
    return done.stdout.splitlines()


def penstock_command(broker: BrokerProcess, *arguments: str) -> None:
    """Run `penstock …` to its end, without an error."""
    running = warm.penstock(arguments, broker.environment | {"PENSTOCK_SERVER": broker.client_address}, text=True)
    _, errors = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, (arguments, errors)


@each_change
def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("\n".join(LINES) + "\n")
    with running_broker(tmp_path / "data") as broker:
        for text in ("README.md", "examples/README.md"):  # the examples also work after the README's commands
            for line in re.findall(r"^penstock (stream create|publish) (.*)$", (ROOT / text).read_text(), re.MULTILINE):
                penstock_command(broker, *shlex.split(" ".join(line)))
        stored = [f"stored in shop at offset {offset}" for offset in range(3)]
        assert run_example(broker, "publish.py") == stored
        assert run_example(broker, "publish.py") == [line.replace("stored", "duplicate") for line in stored]
        assert run_example(broker, "consume.py") == [
            "partition 0 offset 0: anna pays 42",
            "partition 0 offset 1: ben pays 7",
            "partition 0 offset 2: anna pays 20",
            "partition 0: committed 3, lag 0",
        ]
        assert run_example(broker, "consume.py") == ["partition 0: committed 3, lag 0"]
        for _ in range(2):  # the second time nothing is stored again, as the query shows
            assert run_example(broker, "append_once.py", str(file)) == [
                "lines 0 to 99: offsets from 3",
                "lines 100 to 199: offsets from 103",
                "lines 200 to 249: offsets from 203",
            ]
        assert run_example(broker, "query.py") == [
            "DuckDB: shop.eu has 2 orders, total 62",
            f"DuckDB: shop.file has 250 orders, total {sum(range(250))}",
            "DuckDB: shop.us has 1 orders, total 7",
            f"Polars: total {sum(range(250)) + 69}",
            "pandas: {'shop.eu': 2, 'shop.file': 250, 'shop.us': 1}",
        ]
        assert run_example(broker, "typed_service.py") == [
            "call: Order(id='order-1', customer='anna', cents=4200)",
            "refused: the limit is 100000",
            "event: anna ordered for 4200 in eu",
        ]


@each_change
def test_a_load_goes_on_although_the_broker_has_forgotten_where_the_first_lines_are(tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("\n".join(LINES * 4) + "\n")  # ten batches: the broker knows the offsets of the last five
    with running_broker(tmp_path / "data") as broker:
        with penstock.connect(broker.client_address) as client:
            client.create_stream("shop", "shop.>")
            assert len(run_example(broker, "append_once.py", str(file))) == 10
            assert run_example(broker, "append_once.py", str(file)) == ["lines up to 999 are there already"]
            assert client.to_table("shop").num_rows == 1000


@pytest.mark.parametrize("name", ["append_once.py", "spark_stream.py"])
def test_an_example_without_its_argument_shows_how_it_is_used(name: str) -> None:
    if name == "spark_stream.py":
        pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: {name}")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_is_short_and_in_the_table(program: Path) -> None:
    text = program.read_text(encoding="utf-8")
    assert text.count("\n") < LINES_MAX
    assert f"| [{program.name}]({program.name}) |" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_there_are_six_examples() -> None:
    assert [one.name for one in PROGRAMS] == [
        "append_once.py", "consume.py", "publish.py", "query.py", "spark_stream.py",
        "typed_service.py",
    ]  # fmt: skip
