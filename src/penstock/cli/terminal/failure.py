"""Reports failures of a command: one clear line on stderr, what to do about it, and an exit code."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import typer

from penstock.base.config import ALTERABLE
from penstock.base.errors import (
    ConfigError,
    CorruptionError,
    ErrorCode,
    OperationalError,
    PenstockError,
    RemoteError,
)
from penstock.base.shortages import shortage
from penstock.cli.terminal.connection_options import with_connection_options
from penstock.cli.terminal.standard_streams import forget_stdout

FAILED = 1
USED_WRONGLY = 2
INTERRUPTED = 130
DEBUG_VARIABLE = "PENSTOCK_DEBUG"

_ADVICE: dict[str, str] = {
    ErrorCode.STREAM_NOT_FOUND: "`penstock stream list` shows the streams, `penstock stream find SUBJECT` finds some",
    ErrorCode.STREAM_EXISTS: "`penstock stream show NAME` shows its config, `penstock stream alter` changes it",
    ErrorCode.CORRUPT_RANGE: "`penstock status` lists the damage; read around it with --from and --to",
    ErrorCode.STORAGE_FAILED: "check the broker's disk and its log; reads still work",
    ErrorCode.OVERLOADED: "try again in a moment, or publish more slowly",
    ErrorCode.NOT_ENOUGH_REPLICAS: "`penstock status` shows which brokers are live, and which replicas are in sync",
    ErrorCode.NO_ENCRYPTION_KEY: "`penstock keys new` makes a key; docs/how-to/encryption.md says where it goes",
    ErrorCode.NOT_LEADER: "`penstock status` shows the leader of each partition, or why there is none",
    ErrorCode.BROKER_UNAVAILABLE: "`penstock status` shows which brokers are live; try again when they are back",
    ErrorCode.NOT_METADATA_LEADER: "a majority of the voters must be up; `penstock status` shows which brokers are",
    ErrorCode.CLUSTER_MISMATCH: "--server names brokers of different clusters, or of another one than before",
    ErrorCode.TIMED_OUT: "raise the time-out with --timeout",
    ErrorCode.NATS_UNAVAILABLE: "`penstock status` shows the broker's connection to NATS",
    ErrorCode.NATS_REFUSED: "the broker's NATS user needs the permission to subscribe there",
}

_SHARES = "several clients share one consumer; or give each a --subject, so that no two of them take the same messages"
_ADVICE_OF_QUEUES = {
    10084: "acks remove what it holds: --acks explicit",
    10098: "acks remove what it holds: --acks explicit",
    10099: _SHARES,
    10100: _SHARES,
    10101: "its consumers begin at the first message: --from earliest",
}
"""Of consumers that a stream with retention `workqueue` cannot have, by JetStream's error: its text stays as it is."""

_NOT_FOR_DUMP = (".parquet", ".json", ".db", "/_delta_log", "/metadata")  # of lakes and backups

# The client library's errors name its parameters.
_SAID_FOR_PROGRAMS = ("(server=, PENSTOCK_SERVER)", "(--server HOST:PORT, PENSTOCK_SERVER)")

P = ParamSpec("P")
T = TypeVar("T")

_debugging = False


class Interrupted(KeyboardInterrupt):
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number  # the shells' convention


def show_tracebacks() -> None:
    """Print errors with their traceback from now on."""
    global _debugging
    _debugging = True


def is_debugging() -> bool:
    """True if errors are printed with their traceback."""
    return _debugging or bool(os.environ.get(DEBUG_VARIABLE))


def clearly(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap `command` so that errors become one line on stderr and an exit code; add connection options."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            forget_stdout()
            raise typer.Exit(0) from None
        except KeyboardInterrupt as error:
            # Silence warnings of objects and coroutines that Ctrl-C interrupted half-way.
            sys.unraisablehook = lambda _: None
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            raise typer.Exit(error.exit_code if isinstance(error, Interrupted) else INTERRUPTED) from None
        except (PenstockError, OSError, ValueError, ImportError, MemoryError, RuntimeError, SystemError) as error:
            is_mistake = isinstance(error, RuntimeError | SystemError) and shortage(error) is None
            if is_debugging() or is_mistake:
                raise
            raise typer.Exit(report(error)) from None

    return with_connection_options(run)


def report(error: Exception) -> int:
    """Print the error and advice to stderr; return the exit code."""
    mistakes = _config_mistakes(error)
    if mistakes:
        say_error(
            f"the config cannot work; {len(mistakes)} mistakes:" if len(mistakes) > 1 else "the config cannot work:"
        )
        for mistake in mistakes:
            sys.stderr.write(f"  - {printable(mistake)}\n")
        return USED_WRONGLY
    say_error(error_text(error))
    for advice in filter(None, (*getattr(error, "__notes__", ()), _advice(error))):
        sys.stderr.write(f"  {printable(advice)}\n")
    return USED_WRONGLY if isinstance(error, ValueError) and not isinstance(error, PenstockError) else FAILED


def fixed_fields(error: RemoteError) -> list[str]:
    """Return the config fields that differ from the existing stream's and cannot be altered."""
    differences = error.details.get("differences")
    if not isinstance(differences, dict):
        return []
    return sorted(set(map(str, differences)) - ALTERABLE - {"subject", "more_subjects"})


def _config_mistakes(error: Exception) -> list[str]:
    if isinstance(error, ConfigError):
        return error.mistakes
    if isinstance(error, RemoteError) and error.code == ErrorCode.INVALID_CONFIG:
        listed = error.details.get("mistakes")
        return [str(one) for one in listed] if isinstance(listed, list | tuple) else error.message.splitlines()
    return []


@contextmanager
def advising(code: ErrorCode, advice: str) -> Iterator[None]:
    """Add `advice` to a RemoteError with this code, for advice that depends on the command."""
    try:
        yield
    except RemoteError as error:
        if error.code == code:
            error.add_note(advice)
        raise


def say(text: str, *, err: bool = False) -> None:
    """Print lines to stdout or stderr. Control characters are escaped if it is a terminal, else written unchanged."""
    if (sys.stderr if err else sys.stdout).isatty():
        text = "\n".join(map(printable, text.split("\n")))
    typer.echo(text, err=err)


def say_note(text: str) -> None:
    """Print one line to stderr that is not an error."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def say_error(text: str) -> None:
    """Print `text` to stderr after `Error:` (red on a terminal); further lines are indented."""
    word = "Error:"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        word = f"\x1b[1;31m{word}\x1b[0m"
    first, *further = text.splitlines() or [""]
    sys.stderr.write(f"{word} {printable(first)}\n" + "".join(f"  {printable(line)}\n" for line in further))


def printable(text: str) -> str:
    """Return `text` with control characters escaped: names and payloads are untrusted."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_json(text: str) -> str:
    """Return equivalent JSON with escapes for characters that control a terminal: C1, DEL and bidirectional marks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def ascii_json(text: str) -> str:
    """Return equivalent JSON with escapes for all characters outside ASCII."""
    return text if text.isascii() else "".join(char if char.isascii() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def error_text(error: Exception) -> str:
    """Return what is wrong, without advice."""
    if not isinstance(error, PenstockError) and (lacking := shortage(error)) is not None:
        return lacking
    if isinstance(error, OSError) and not isinstance(error, PenstockError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = (error.message if isinstance(error, RemoteError) else str(error)) or type(error).__name__
    return text.replace(*_SAID_FOR_PROGRAMS)


def _advice(error: Exception) -> str:
    if isinstance(error, RemoteError):
        if "nobody_leads" in error.details:  # a longer time-out would not help
            return "`penstock status` shows which brokers are down; docs/how-to/no-leader.md says what can be done"
        if error.code == ErrorCode.READ_ONLY:
            return _take_again(error)
        if error.code == ErrorCode.STREAM_EXISTS and (fixed := fixed_fields(error)):
            from penstock.cli.terminal.stream_fields import flag_of

            flags = " and ".join(map(flag_of, fixed))
            other = "take another name, or `penstock stream delete NAME`, with all that it holds"
            return f"{flags} cannot be altered: {other}"
        if error.code == ErrorCode.STREAM_EXISTS and "partition" in error.details:
            return ""  # there may be no stream of that name
        if "key_id" in error.details:
            return "a new key does not decrypt existing data; docs/how-to/encryption.md says where keys go"
        if error.code == ErrorCode.BAD_REQUEST and error.details.get("err_code") in _ADVICE_OF_QUEUES:
            return _ADVICE_OF_QUEUES[error.details["err_code"]]
        if "tried" in error.details:
            return "`penstock status` shows which brokers are live and what they wait for; more time: --timeout"
        return _ADVICE.get(error.code, "")
    if (
        isinstance(error, OperationalError)
        and isinstance(error, ConnectionError)
        and "penstock serve" not in str(error)
        and "a broker listens" not in str(error)
        and "Penstock's protocol" not in str(error)
        and "TLS" not in str(error)
        and "certificate" not in str(error)
    ):
        if "inbox_prefix" in str(error):
            return "--inbox-prefix says which: what that user may subscribe to, such as _INBOX.shop for _INBOX.shop.>"
        if "asks for a login" in str(error):
            return (
                "--nats-creds FILE says as whom; for the nats-server that a broker starts by itself that is "
                "nats.credentials in its data directory. Without a login to NATS, rows are appended through the "
                "broker: client.append"
            )
        if "NATS" in str(error):
            return "--nats URL says where to publish, --nats-creds as whom; `penstock status` shows the broker's NATS"
        return "start a broker with `penstock serve`, or say where one is with --server HOST:PORT or PENSTOCK_SERVER"
    if isinstance(error, CorruptionError) and not error.advice:
        can_dump = not error.file.endswith(_NOT_FOR_DUMP) or os.path.basename(error.file) == "penstock.json"
        return "nothing was deleted" + ("; `penstock dump FILE` shows what the file contains" if can_dump else "")
    return ""


def _take_again(error: RemoteError) -> str:
    # READ_ONLY has several causes and no field for them. Only if its text mentions `resume` does resuming help; for a
    # sealed or corrupt log the text alone is enough.
    if "resume" not in error.message:
        return ""
    return f"`penstock stream resume {error.details.get('stream') or 'NAME'}` lets it accept messages again"
