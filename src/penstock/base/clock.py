"""What time it is, twice: the calendar's, which may jump, and one that only goes forward."""

from __future__ import annotations

import msgspec


class Now(msgspec.Struct, frozen=True, gc=False):
    """A moment: `wall_us` stamps messages and ages them, `elapsed_us` times waits, which a set clock must not stall."""

    wall_us: int  # microseconds since 1970 UTC
    elapsed_us: int  # microseconds since some fixed moment


def growing(first: int, failures: int, most: int) -> int:
    """How long to wait after so many failures in a row: `first`, twice as long each time, and `most` at last."""
    assert failures > 0, failures
    return min(first << min(failures - 1, 32), most)


def earliest(*times_us: int | None) -> int | None:
    """The first of these times; None are no times. A plain loop: it is asked with every batch."""
    first_us = None
    for time_us in times_us:
        if time_us is not None and (first_us is None or time_us < first_us):
            first_us = time_us
    return first_us
