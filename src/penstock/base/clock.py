"""The time, as wall-clock time, which may jump, and as monotonic time; backoff."""

from __future__ import annotations

import msgspec


class Now(msgspec.Struct, frozen=True, gc=False):
    """A moment. `wall_us` stamps and ages messages; `elapsed_us` is monotonic and measures waits."""

    wall_us: int  # microseconds since 1970 UTC
    elapsed_us: int  # microseconds since an arbitrary fixed moment


def growing(first: int, failures: int, most: int) -> int:
    """Return the backoff after `failures` failures in a row: `first`, doubled each time, up to `most`."""
    assert failures > 0, failures
    return min(first << min(failures - 1, 32), most)


def earliest(*times_us: int | None) -> int | None:
    """Return the earliest of these times, ignoring None. A plain loop for speed: called for every batch."""
    first_us = None
    for time_us in times_us:
        if time_us is not None and (first_us is None or time_us < first_us):
            first_us = time_us
    return first_us
