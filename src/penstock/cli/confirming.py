"""A question before something goes for good."""

from __future__ import annotations

import sys

from penstock.base.errors import OperationalError


def confirmed(question: str) -> bool:
    """What a person answers; OperationalError where nobody does."""
    # Not click's: that makes one thing of Ctrl-C and of an end of the input.
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise OperationalError("nobody is there to answer; with --yes it does not ask")
    return answer.strip().lower() in ("y", "yes")
