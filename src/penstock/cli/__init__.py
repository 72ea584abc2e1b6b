"""The command line: thin commands over the client library and the broker.

Rules: a command parses its arguments, calls the client or the broker, and prints. Data goes to stdout, everything else
to stderr. Output that a script may want has a JSON form. An error is one clear line and what to do about it; `--debug`
shows the traceback. The command that needs a slow module imports it, so that `--help` and shell completion are quick.

| exit code | meaning                                                                  |
|-----------|--------------------------------------------------------------------------|
| 0         | success; also if the reader of stdout closed the pipe early (`| head`)    |
| 1         | the broker, NATS, the disk or the network refused or failed; or what the |
|           | command looks for is not there, with --json too; a count of 0 is there   |
| 2         | usage error: options, values, an invalid config                          |
| 130       | Ctrl-C                                                                   |
| 143, 129  | bench and demo: SIGTERM, SIGHUP (the terminal was closed)                |
"""

from __future__ import annotations

import sys
from contextlib import suppress

from penstock.base.importing import undisturbed
from penstock.base.shortages import shortage
from penstock.cli.terminal.standard_streams import forget_stdout, secure


def main() -> None:
    """Run the program `penstock`."""
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
    """Return the exit code after a failed write to stdout: 0 for a closed pipe, else 1 with an error on stderr.

    If the command had already failed, its `code` stays.
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
            from penstock.cli.terminal.help import called_here

            asked = called_here(sys.argv[1:], COMMANDS)[:1]
            app = program(asked if asked and asked[0] in COMMANDS else COMMANDS)
    except KeyboardInterrupt:  # no command has started yet
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
