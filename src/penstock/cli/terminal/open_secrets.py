"""Warns of a file with a secret that other users of the machine may read.

Rules: brokers, `--credentials`, `--nats-creds` and keys of TLS refuse such a file (`penstock.access.secret_files`).
Commands that took one from the beginning warn instead, so that scripts go on. What the file's owner and mode may be is
the same: Kubernetes' secrets (root, `fsGroup`, mode 0440) cause no warning.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.access.secret_files import allowed_by, open_to_others
from penstock.cli.terminal.failure import say_note

_told: set[Path] = set()


def warn_if_open(file: Path) -> None:
    """Print one line to stderr if the file's mode lets others use it, once in this process."""
    with suppress(OSError):  # a file that cannot be read is reported when it is read
        advice = None if allowed_by(os.environ) else open_to_others(file, file.stat())
        if advice is not None and file not in _told:
            _told.add(file)
            say_note(f"warning: {advice}")
