"""Log lines: for people, as JSON, and without secrets or forgeries."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from penstock.broker import logs


@pytest.fixture
def _loggers_as_before() -> Iterator[None]:
    names = ("penstock", "asyncio", "py.warnings", "")
    before = {name: (logging.getLogger(name).handlers[:], logging.getLogger(name).propagate) for name in names}
    levels = {name: logging.getLogger(name).level for name in names}
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers[:] = handlers
        logging.getLogger(name).propagate = propagate
        logging.getLogger(name).setLevel(levels[name])


def record(text: str = "something", level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    return logging.getLogger("penstock.test").makeRecord("penstock.test", level, "f.py", 1, text, (), None, extra=extra)


def test_a_line_for_people() -> None:
    line = logs.HumanFormatter(colour=False).format(record("connected", url="nats://h:1", reason="two words", empty=""))
    moment, _, rest = line.partition(" INFO    ")
    assert len(moment) == len("2026-11-20 23:41:07.113")
    assert rest == 'connected  url=nats://h:1 reason="two words" empty=""'


def test_a_line_of_json() -> None:
    line = json.loads(
        logs.JsonFormatter(4).format(record("connected", level=logging.WARNING, offset=7, raw=b"\xff", time=3))
    )
    assert line.pop("time").endswith("Z")
    expected = {
        "level": "warning",
        "message": "connected",
        "logger": "penstock.test",
        "broker": 4,
        "offset": 7,
        "raw": "\\xff",
        "time_": 3,
    }
    assert line == expected


@pytest.mark.parametrize(
    "formatter", [logs.HumanFormatter(colour=False), logs.HumanFormatter(colour=True), logs.JsonFormatter()]
)
def test_no_line_shows_a_secret_or_can_be_forged(formatter: logging.Formatter) -> None:
    hostile = "x\n2026-01-01 00:00:00.000 ERROR   forged \x1b]0;owned\x07 \u2028"
    line = formatter.format(record(f"lost nats://me:secret@h:1 {hostile}", subject=hostile, url="tls://t0ken@h"))
    assert "secret" not in line
    assert "t0ken" not in line
    assert len(line.splitlines()) == 1
    assert "\x1b]" not in line
    assert "\x07" not in line


def test_a_traceback_is_kept_without_secrets() -> None:
    try:
        raise OSError("cannot reach nats://me:secret@h:1")
    except OSError as error:
        failed = record("lost")
        failed.exc_info = (type(error), error, error.__traceback__)
    human = logs.HumanFormatter(colour=False).format(failed)
    assert "Traceback" in human
    assert "nats://***@h:1" in human
    assert "OSError: cannot reach nats://***@h:1" in json.loads(logs.JsonFormatter().format(failed))["exception"]


@pytest.mark.usefixtures("_loggers_as_before")
def test_configuring_twice_logs_once_and_at_the_level_asked_for() -> None:
    stream = io.StringIO()
    logs.configure(level="info", log_format="human", stream=stream)
    logs.configure(level="warning", log_format="json", stream=stream)
    logging.getLogger("penstock.broker").info("not shown")
    logging.getLogger("penstock.broker").warning("disk is %s", "slow", extra={"ms": 12})
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "disk is slow"
    assert json.loads(line)["ms"] == 12


@pytest.mark.usefixtures("_loggers_as_before")
def test_as_json_whatever_is_said_is_an_object() -> None:
    stream = io.StringIO()
    logs.configure(level="info", log_format="json", broker=7, stream=stream)

    def fail() -> None:
        raise ZeroDivisionError("in a thread, at nats://me:secret@h")

    class Failing:
        def __del__(self) -> None:
            raise ZeroDivisionError("where nobody can be told")

    thread = threading.Thread(target=fail, name="upkeep")
    thread.start()
    thread.join()
    Failing()
    logging.getLogger("some.library").warning("is slow")
    logging.getLogger("some.library").info("is not asked")
    logging.getLogger("asyncio").error("took long")
    logging.getLogger("penstock.supervisor").info("of another one", extra={"broker": 8})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old\nnews", DeprecationWarning, stacklevel=1)
    try:
        fail()
    except ZeroDivisionError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [
        (line["level"], line["broker"], line["message"].splitlines()[0]) for line in lines if "news" not in str(line)
    ] == [
        ("critical", 7, "internal error (bug) ends a thread"),
        ("error", 7, "an error that cannot be raised (in a destructor or callback)"),
        ("warning", 7, "is slow"),
        ("error", 7, "took long"),
        ("info", 8, "of another one"),
        ("critical", 7, "internal error (bug) ends the process"),
    ]
    assert lines[0]["thread_name"] == "upkeep"
    assert "ZeroDivisionError" in lines[0]["exception"]
    assert len(lines) == 7
    for line in lines:
        assert {"time", "level", "logger", "message", "broker"} <= set(line)
    assert "secret" not in stream.getvalue()
