"""What may be done with a log.

| state     | append | flush | retention | how it gets there                                    | how it gets out    |
|-----------|--------|-------|-----------|------------------------------------------------------|--------------------|
| WRITABLE  | yes    | yes   | yes       | open                                                 |                    |
| TRUNCATING| no     | no    | no        | `truncate`, `reset`                                  | when that has ended|
| READ_ONLY | no     | yes   | no        | damage found, at open or by a reader                 | mended, or restart |
| FENCED    | no     | no    | no        | a sync failed, or a failed write could not be undone | restart            |
"""

from __future__ import annotations

from enum import Enum


class LogState(Enum):
    """What may be done with a log. See the module's table."""

    WRITABLE = "writable"
    TRUNCATING = "truncating"
    READ_ONLY = "read_only"
    FENCED = "fenced"
