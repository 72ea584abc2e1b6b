"""`penstock serve` of 0.1.0, whose commands are not in the archive: the settings as flags."""

from __future__ import annotations

import os
import sys

from penstock.broker import logs
from penstock.broker.config import load  # type: ignore[attr-defined] # where 0.1.0 has it
from penstock.broker.serve import run


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM."""
    names = [one.removeprefix("--").replace("-", "_") for one in arguments[::2]]
    settings = load(file=None, environment=os.environ, flags=dict(zip(names, arguments[1::2], strict=True)))
    logs.configure(level=settings.log_level, log_format=settings.log_format)
    return run(settings, ready=lambda at: _say(f"ready client={at.client} nats={at.nats} data={at.data_dir}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
