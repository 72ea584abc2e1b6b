"""States of a log.

| state     | append | flush | retention | entered by                                           | left by            |
|-----------|--------|-------|-----------|------------------------------------------------------|--------------------|
| WRITABLE  | yes    | yes   | yes       | open                                                 |                    |
| TRUNCATING| no     | no    | no        | `truncate`, `reset`                                  | the end of that    |
| READ_ONLY | no     | yes   | no        | corruption found, at open or by a reader             | repair, or restart |
| FENCED    | no     | no    | no        | a sync failed, or a failed write could not be undone | restart            |
"""

from __future__ import annotations

from enum import Enum


class LogState(Enum):
    """State of a log. See the module's table."""

    WRITABLE = "writable"
    TRUNCATING = "truncating"
    READ_ONLY = "read_only"
    FENCED = "fenced"
