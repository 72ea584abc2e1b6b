"""A broker as a child process: the line it says, and what becomes of one that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.broker.supervision.child import ReadyLine, parse_ready, serving


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "ready client=127.0.0.1:7422 nats=nats://127.0.0.1:4222 data=my data/x\n",
            ReadyLine("127.0.0.1:7422", "nats://127.0.0.1:4222", "my data/x"),
        ),
        ("ready client=[::1]:1 nats=a,b data=", ReadyLine("[::1]:1", "a,b", "")),
        ("ready", None),
        ("ready nats=a client=b data=c", None),
        ("steady client=127.0.0.1:7422 nats=x data=y", None),
        ("", None),
    ],
)
def test_the_ready_line(line: str, expected: ReadyLine | None) -> None:
    assert parse_ready(line) == expected


def test_a_broker_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NATS", "nats://not-for-this-broker:1")
    with pytest.raises(OperationalError) as caught, serving(tmp_path, "--listen", "nonsense"):
        pytest.fail("it cannot be ready")
    assert "exit code 2" in str(caught.value)
    assert "--listen: 'nonsense' is not an address" in str(caught.value)
    assert "not-for-this-broker" not in str(caught.value)
