"""A broker process under a supervisor: its config comes through stdin, and it stops when stdin is closed.

Rules: stdin stays open for as long as the supervisor lives: its end means that the supervisor has ended, for whatever
reason, and the broker stops cleanly. The config is one line of JSON, parsed already: nothing is read twice, and secrets
are in no command line and in no environment. News for the supervisor go to stdout, one line each; the log goes to
stderr.

    listening            it serves requests
    ready                it is registered in the cluster
    reason TEXT          the last error of its log, before it ends; TEXT is a JSON string
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.base.importing import undisturbed
from penstock.broker import logs
from penstock.broker.config.config import BrokerConfig
from penstock.broker.supervision.restart_policy import USED_WRONGLY

_SUPERVISOR_CONFIG_BYTES_MAX = limits.MIB
LISTENING, READY, REASON = b"listening", b"ready", b"reason"
_STDIN = 0
_log = logging.getLogger("penstock.broker")


class ConfigHandoff(msgspec.Struct, frozen=True):
    """Start-up data of a broker under a supervisor."""

    config: BrokerConfig
    cpu: int | None = None  # the core to pin to
    colour: bool = False  # True if its log ends up on a terminal


def encode(handed: ConfigHandoff) -> bytes:
    """Return the line, with its line end."""
    return msgspec.json.encode(handed, enc_hook=_plain) + b"\n"


def decode(line: bytes) -> ConfigHandoff:
    """Parse the line; raise msgspec.DecodeError if it is invalid."""
    return msgspec.json.decode(line, type=ConfigHandoff, dec_hook=_typed)


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    assert isinstance(value, Path)
    return str(value)


def _typed(kind: Any, value: Any) -> Any:
    assert kind is Path
    return Path(value)


class _LastError(logging.Handler):
    """Keeps the last error that was logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = logs.without_secrets(record.getMessage())


def main() -> None:
    """Run the process of one broker."""
    handed = _handed()
    if handed is None:
        sys.exit("the supervisor ended before it sent the config")
    if handed.cpu is not None:
        with suppress(OSError, AttributeError):  # pinning is optional
            os.sched_setaffinity(0, {handed.cpu})
    config = handed.config
    logs.configure(level=config.log_level, log_format=config.log_format, broker=config.broker_id, colour=handed.colour)
    last = _LastError()
    logging.getLogger("penstock").addHandler(last)
    threading.Thread(target=_stop_with_supervisor, name="supervisor's end", daemon=True).start()
    with undisturbed():
        from penstock.broker.serve import run
    try:
        code = run(config, listening=lambda _: _say(LISTENING), ready=lambda _: _say(READY))
    except ConfigError as error:
        for mistake in error.mistakes:
            _log.error("%s", mistake)
        last.text = "; ".join(error.mistakes)
        code = USED_WRONGLY
    if last.text:
        _say(REASON + b" " + msgspec.json.encode(last.text))
    sys.exit(code)


def _handed() -> ConfigHandoff | None:
    received = bytearray()
    while not received.endswith(b"\n") and len(received) <= _SUPERVISOR_CONFIG_BYTES_MAX:
        chunk = os.read(_STDIN, _SUPERVISOR_CONFIG_BYTES_MAX)
        if not chunk:
            return None
        received += chunk
    return decode(bytes(received))


def _stop_with_supervisor() -> None:
    with suppress(OSError):
        while os.read(_STDIN, 1):
            pass
    _log.warning("the supervisor has ended: the broker stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _say(line: bytes) -> None:
    with suppress(OSError):  # the supervisor has ended
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
