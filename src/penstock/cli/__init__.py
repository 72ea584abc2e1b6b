"""The command line: thin commands over the client library and the broker.

Rules: a command parses, calls, prints. Data goes to stdout, everything else to stderr. What a script may want has a
JSON form. An error is one clear line and what to do about it; `--debug` shows the traceback. Modules that take long to
import are imported by the command that needs them, so that `--help` and shell completion are quick.

| exit code | meaning                                                          |
|-----------|------------------------------------------------------------------|
| 0         | done; also when the reader of our output had enough (`| head`)    |
| 1         | the broker, NATS, the disk or the network refused or failed       |
| 2         | used wrongly: options, values, a config that cannot work          |
| 130       | Ctrl-C                                                           |
| 143, 129  | the bench and the demo: SIGTERM, a terminal that was closed       |
"""

from __future__ import annotations

import sys
from contextlib import suppress

from penstock.base.importing import undisturbed
from penstock.base.shortages import shortage
from penstock.cli.standard_streams import forget_stdout, secure


def main() -> None:
    """The program `penstock`."""
    secure()
    code: object = None
    try:
        _run()
    except SystemExit as ended:
        code = ended.code
    except OSError as error:
        code = _not_written(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _not_written(error, code)
    raise SystemExit(code)


def _not_written(error: OSError, code: object = None) -> object:
    """What the program ends with where stdout takes no more: as a command that does is told (see `failure`).

    One that has failed has said so: its `code` stays.
    """
    forget_stdout()
    if code:
        return code
    if isinstance(error, BrokenPipeError):
        return 0
    with suppress(OSError):
        sys.stderr.write(f"Error: {error.strerror or error}\n")
    return 1


def _run() -> None:
    try:
        with undisturbed():
            from penstock.cli.program import COMMANDS, program

            asked = sys.argv[1:2]
            app = program(asked if asked and asked[0] in COMMANDS else COMMANDS)
    except KeyboardInterrupt:  # before there was a command to end
        raise SystemExit(130) from None
    except (ImportError, MemoryError, OSError) as error:
        if (lacking := shortage(error)) is None:
            raise
        sys.stderr.write(f"Error: {lacking}\n")
        raise SystemExit(1) from None
    try:
        app(prog_name="penstock")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
