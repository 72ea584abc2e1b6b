"""What was damaged in a compacted log is mended with what another replica has, which has other segments, has compacted
at another time, and begins elsewhere; and a producer's batch stays what it was.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, note
from hypothesis import strategies as st

from penstock.batch.codec import NOBODY, BatchProducer, producer_of
from penstock.commitlog import Log, LogConfig, LogState, RepairError
from penstock.vfs.memory import MemoryVfs
from tests.keyed import Row, append_keyed, batches_of, rows_of
from tests.logs import clean_all, give_up_before, open_log, save
from tests.property.test_mending import Donor, find_all, harmed, mend

RETENTION_US = 1_000
CONFIG = LogConfig(segment_bytes=4_000, compact=True, tombstone_retention_us=RETENTION_US)
_KEYS = st.sampled_from([None, b"a", b"a", b"a", b"b", b"c"])
_ROWS = st.lists(st.tuples(_KEYS, st.sampled_from([b"value", b"value", None])), min_size=1, max_size=4)
_PRODUCERS = st.sampled_from([NOBODY, NOBODY, BatchProducer(7, 0, 1), BatchProducer(0, 1, 2, b"one run of sixte")])
_BATCHES = st.lists(st.tuples(_ROWS, _PRODUCERS), min_size=1, max_size=30)


class Replica:
    """The same batches as in the others, in segments of its own."""

    def __init__(
        self, batches: list[tuple[list[tuple[bytes | None, bytes | None]], BatchProducer]], epochs: list[int]
    ) -> None:
        self.batches, self.epochs = batches, epochs
        self.disk = MemoryVfs()
        self.appended: list[Row] = []
        self.producers: dict[tuple[int, int], BatchProducer] = {}

    def grow(self, draw: st.DrawFn) -> Log:
        self.config = replace(CONFIG, segment_bytes=draw(st.sampled_from([2_000, 4_000, 9_000, 100_000])))
        log = open_log(self.disk, self.config)
        passes = draw(st.sets(st.integers(1, len(self.batches)), max_size=3), label="compacted after")
        for number, (rows, producer) in enumerate(self.batches):
            if number in self.epochs or not number:
                log.start_epoch(log.leader_epoch + 1)
            begin = log.log_end
            by = producer._replace(producer_sequence=number) if producer != NOBODY else producer
            self.appended += append_keyed(log, rows, number, by)
            if by != NOBODY:
                self.producers[begin, log.log_end] = by
            if number + 1 in passes:
                self.clean(log, number)
        save(log)
        log.note_committed(log.log_end)
        return log

    def clean(self, log: Log, now_us: int) -> None:
        save(log)
        log.note_committed(log.log_end)
        clean_all(log, now_us)
        clean_all(log, now_us + 10 * RETENTION_US)


def give_up(log: Log, offset: int) -> None:
    if (removal := give_up_before(log, offset)) is not None:
        removal.run()
    save(log)


@given(data=st.data())
def test_a_compacted_log_is_whole_again_whatever_was_damaged(data: st.DataObject) -> None:
    draw = data.draw
    batches = draw(_BATCHES)
    epochs = draw(st.lists(st.integers(1, len(batches)), max_size=2), label="epochs begin")
    here, there = Replica(batches, epochs), Replica(batches, epochs)
    log, other = here.grow(draw), there.grow(draw)
    starts = st.sampled_from([0, 0, draw(st.integers(0, log.log_end))])
    begin = 0
    for one, name in ((log, "here"), (other, "there")):
        if start := draw(starts, label=f"given up {name} before"):
            give_up(one, start)
            begin = max(begin, start)
    had = set(rows_of(log.view())), set(rows_of(other.view()))
    log.close()
    for _ in range(draw(st.integers(1, 3))):
        note(draw(harmed(here.disk)))
    damaged = open_log(here.disk, here.config, must_exist=True)
    find_all(damaged)
    if damaged.state is LogState.WRITABLE:
        return
    donor = Donor(other, there.disk, other.log_end, draw(st.sampled_from([1, 2_000, 10**6]), label="bytes at once"))
    try:
        mending = mend(damaged, donor)
    except RepairError as error:
        if "upgrade" not in str(error):  # else nothing says that it is ours
            raise
        return
    damaged.close()
    mending.place()
    mended = open_log(here.disk, here.config, must_exist=True)
    assert mended.state is LogState.WRITABLE, mended.damage
    assert mended.log_end == len(here.appended)
    found = rows_of(mended.view())
    assert [row.offset for row in found] == sorted({row.offset for row in found})
    assert set(found) <= set(here.appended)
    assert {row for row in found if row.offset >= begin} <= had[0] | had[1]
    assert {row for row in had[0] & had[1] if row.offset >= begin} <= set(found)
    promised = {extent: by for extent, by in here.producers.items() if extent[1] > mended.log_start}
    headers = [header for header, _ in batches_of(mended.view())]
    made = {(one.base_offset, one.end_offset): producer_of(one) for one in headers if producer_of(one) != NOBODY}
    assert made == promised
