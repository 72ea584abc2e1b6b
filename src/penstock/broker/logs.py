"""Logging to stderr, for people or as JSON lines. Standard library only.

Rules: a record is a short text, with fields as `extra`. External input cannot forge a line (control characters are
escaped), and no URL shows its user part. Logging never raises into the caller. In JSON format every line is an object,
also from libraries, warnings, and threads that end with an error. `broker` is the id of the broker that logs, null for
lines of no single broker.

    logger = logging.getLogger(__name__)
    logger.info("connected to NATS", extra={"url": url, "server": name})

| format | a line                                                                                                     |
|--------|------------------------------------------------------------------------------------------------------------|
| human  | `2026-11-20 23:41:07.113 INFO    connected to NATS  url=nats://127.0.0.1:4222 server=N1`                   |
| json   | `{"time":"2026-11-20T23:41:07.113Z","level":"info","message":"connected to NATS","logger":…,"broker":1,…}` |
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from types import TracebackType
from typing import Any, TextIO

import msgspec

_log = logging.getLogger("penstock.broker")

_ROOT = "penstock"
# Attributes of every record; all others came through `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_USER_PART = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/@\s]+@", re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# valid JSON, but line ends or control commands to some readers
_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f\u2028\u2029]")
_NEEDS_QUOTES = re.compile(r"[\s\"=]|^$")
_COLOURS = {"INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
_DIM = "\x1b[2m"
_RESET = "\x1b[0m"


class _Handler(logging.StreamHandler[TextIO]):
    """A class of our own, to recognise a handler of an earlier call."""


def configure(
    *,
    level: str,
    log_format: str,
    broker: int | None = None,
    stream: TextIO | None = None,
    colour: bool | None = None,
) -> None:
    """Log Penstock's records and warnings of other libraries to `stream` (stderr); replaces an earlier configuration.

    `broker`: id of this process's broker. `colour` None: if the stream is a terminal and NO_COLOR is not set. In JSON
    format, errors that end a thread or the process are logged as well.
    """
    target = sys.stderr if stream is None else stream
    if colour is None:
        colour = target.isatty() and not os.environ.get("NO_COLOR")
    handler = _Handler(target)
    handler.setFormatter(JsonFormatter(broker) if log_format == "json" else HumanFormatter(colour=colour))
    for name in (_ROOT, "asyncio"):
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.propagate = False
    logging.getLogger(_ROOT).setLevel(level.upper())
    logging.getLogger("asyncio").setLevel("WARNING")
    logging.captureWarnings(True)
    warnings = logging.getLogger("py.warnings")
    warnings.handlers[:] = [handler]
    warnings.propagate = False
    root = logging.getLogger()  # for libraries
    root.handlers[:] = [*(one for one in root.handlers if not isinstance(one, _Handler)), handler]
    if log_format == "json":
        sys.excepthook, threading.excepthook, sys.unraisablehook = _ends_process, _ends_thread, _cannot_be_raised


def _ends_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    _log.critical("internal error (bug) ends the process", exc_info=(kind, error, trace))


def _ends_thread(args: threading.ExceptHookArgs) -> None:
    error = args.exc_value
    if error is not None:
        name = "" if args.thread is None else args.thread.name
        told = (args.exc_type, error, args.exc_traceback)
        _log.critical("internal error (bug) ends a thread", exc_info=told, extra={"thread_name": name})


def _cannot_be_raised(args: sys.UnraisableHookArgs) -> None:
    error = args.exc_value
    if error is not None:
        told = (args.exc_type, error, args.exc_traceback)
        _log.error(
            "an error that cannot be raised (in a destructor or callback)",
            exc_info=told,
            extra={"where": repr(args.object)},
        )


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a record was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def without_secrets(text: str) -> str:
    """Return `text` with the user part of every URL hidden."""
    return _USER_PART.sub(r"\1***@", text)


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _plain(value: object) -> object:
    """Return a field's value as a JSON type."""
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return without_secrets(text.encode("utf-8", "backslashreplace").decode())


class HumanFormatter(logging.Formatter):
    """One line for a person; a traceback follows on lines of its own."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        moment = f"{moment}.{int(record.msecs):03d}"
        level = f"{record.levelname:<7}"
        fields = " ".join(f"{name}={self._shown(value)}" for name, value in fields_of(record).items())
        if self._colour:
            moment = f"{_DIM}{moment}{_RESET}"
            level = f"{_COLOURS.get(record.levelname, '')}{level}{_RESET}"
            fields = f"{_DIM}{fields}{_RESET}" if fields else ""
        line = f"{moment} {level} {_escape(without_secrets(record.getMessage()))}"
        if fields:
            line += f"  {fields}"
        for part in self._traces(record):
            line += f"\n{part}"
        return line

    def _shown(self, value: object) -> str:
        text = _escape(str(_plain(value)))
        return '"' + text.replace('"', '\\"') + '"' if _NEEDS_QUOTES.search(text) else text

    def _traces(self, record: logging.LogRecord) -> list[str]:
        parts = []
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return [without_secrets(part) for part in parts]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `message`, `logger`, `broker`, then the fields.

    A record of another broker has its own `broker` as `extra`.
    """

    def __init__(self, broker: int | None = None) -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": _plain(record.getMessage()),
            "logger": record.name,
        }
        fields = fields_of(record)
        line["broker"] = _plain(fields.pop("broker", self._broker))
        for name, value in fields.items():
            # A field never replaces a standard one.
            line[f"{name}_" if name in line else name] = _plain(value)
        if record.exc_info:
            line["exception"] = _plain(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _plain(record.stack_info)
        encoded = msgspec.json.encode(line).decode()
        return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)
