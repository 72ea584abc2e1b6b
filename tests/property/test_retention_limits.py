"""Retention by age, count and bytes at once, and a beginning given up by hand, against a list."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import examples
from tests.logs import append, flush, open_log, read_slices, retain

SEGMENT_BYTES = 4_096
SECOND_US = 1_000_000


class Batch(NamedTuple):
    """What the log holds, as the test knows it."""

    base_offset: int
    timestamp_us: int
    kept_bytes: int  # from its beginning to the end of the log, with the schema message of each later segment


limits_of = st.fixed_dictionaries(
    {
        "max_age_us": st.none() | st.integers(1, 40).map(lambda seconds: seconds * SECOND_US),
        "max_messages": st.none() | st.integers(1, 40),
        "max_bytes": st.none() | st.integers(1, 20_000),
    }
)
batches_of = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 600), st.integers(0, 3)), min_size=1, max_size=20)


def batches_in(log: Log) -> list[Batch]:
    """Newest first, by the bytes as they lie in the files."""
    found: list[Batch] = []
    behind = 0
    for segment in reversed(log.view().segments):
        headers = [header for header, _ in log.view().batches(segment.base_offset, segment.end_offset)]
        assert segment.size_bytes == SCHEMA_BYTES + sum(header.size_bytes for header in headers)
        for header in reversed(headers):
            behind += header.size_bytes
            found.append(Batch(header.base_offset, header.min_timestamp_us, behind))
        behind += SCHEMA_BYTES
    return found


def wanted_start(batches: list[Batch], config: LogConfig, log_end: int, now_us: int) -> int:
    """The first offset that no limit lets go."""
    start = 0
    if config.max_messages is not None:
        start = max(start, log_end - config.max_messages)
    if config.max_age_us is not None:
        young = [one.base_offset for one in batches if one.timestamp_us >= now_us - config.max_age_us]
        start = max(start, min(young, default=log_end))
    if config.max_bytes is not None and batches:
        fit = [one.base_offset for one in batches if one.kept_bytes <= config.max_bytes]
        start = max(start, min(fit, default=batches[0].base_offset))
    return start


@settings(max_examples=examples(150), deadline=None)
@given(given_batches=batches_of, limits=limits_of, later_s=st.integers(0, 60), by_hand=st.integers(0, 90))
def test_all_that_one_limit_lets_go_goes_and_nothing_else(
    given_batches: list[tuple[int, int, int]], limits: dict[str, int | None], later_s: int, by_hand: int
) -> None:
    disk = MemoryVfs()
    config = LogConfig(segment_bytes=SEGMENT_BYTES, **limits)
    log = open_log(disk, LogConfig(segment_bytes=SEGMENT_BYTES))
    now_us = SECOND_US
    messages = []
    for rows, size_bytes, pause_s in given_batches:
        now_us += pause_s * SECOND_US
        messages += append(log, rows, now_us, size_bytes=size_bytes)
    flush(log)
    batches = batches_in(log)
    now_us += (later_s + 1) * SECOND_US
    log.configure(config)
    log.raise_start(by_hand)
    by_hand = min(by_hand, log.log_end)
    assert log.log_start == by_hand
    while (removal := retain(log, now_us)) is not None:
        removal.run()
        assert log.log_start == max(by_hand, wanted_start(batches, config, log.log_end, now_us))
        now_us += 2 * SECOND_US  # the next look
    start = log.log_start
    assert start == max(by_hand, wanted_start(batches, config, log.log_end, now_us))
    assert read_slices(disk, log.view()) == messages[start:]
    log.checkpoint()
    for left in (disk.crash_clone(Keep.SYNCED), disk.crash_clone(Keep.ALL)):
        again = open_log(left, config)
        assert (again.log_start, again.log_end) == (start, len(messages))
        assert read_slices(left, again.view()) == messages[start:]
