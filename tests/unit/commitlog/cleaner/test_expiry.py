"""A message goes once its time to live is over: not before, and not much later."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock.base import limits
from penstock.base.config import Compression
from penstock.batch import codec
from penstock.batch.codec import BatchProducer
from penstock.batch.header import COMPRESSED_ZSTD, MAY_EXPIRE, PREFIX_BYTES
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Cleaning, Log, LogConfig, LogState
from penstock.commitlog.cleaner.expirer import Expirer
from penstock.commitlog.cleaner.expiry import ExpirySurvey
from penstock.commitlog.files.index import PackedEntries
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind, no_faults
from penstock.vfs.memory import Keep, MemoryVfs
from tests.expiring import Row, Told, append_told, offsets_of
from tests.keyed import batches_of
from tests.logs import DIRECTORY, clean_all, finished, give_up_before, open_log, run, save

S = 1_000_000
CONFIG = LogConfig(segment_bytes=8192, expires=True)
KEPT = Told()


def ttl(text: str, key: bytes | None = None, value: bytes | None = b"v", **headers: str) -> Told:
    """A message with a time to live."""
    more: Mapping[str, str] = {name.replace("_", "-"): one for name, one in headers.items()}
    return Told({"Nats-TTL": text, **more}, key, value)


class Stream:
    """A log, and all that was appended to it."""

    def __init__(self, config: LogConfig = CONFIG, vfs: MemoryVfs | FaultyVfs | None = None) -> None:
        self.vfs = vfs or MemoryVfs()
        self.log: Log = open_log(self.vfs, config)
        self.log.start_epoch(1)
        self.rows: list[Row] = []
        self.now_us = 0

    def append(self, *messages: Told, times: int = 1, producer: BatchProducer | None = None) -> list[int]:
        """So many batches of these messages, at one time; their offsets."""
        added = []
        for _ in range(times):
            added += append_told(self.log, messages, self.now_us, producer or BatchProducer())
        self.rows += added
        return [row.offset for row in added]

    def seal(self) -> None:
        """What was appended goes into segments that are committed; others that stay follow."""
        end = self.log.log_end
        while self.log.view().segments[-1].base_offset < end:
            self.append(KEPT)
        self.commit()

    def commit(self) -> None:
        save(self.log)
        self.log.note_committed(self.log.log_end)

    def roll(self) -> None:
        """The active segment is sealed, because it is old; nothing follows."""
        assert self.log.config.roll_age_us is not None
        self.now_us = max(self.now_us, self.log.config.roll_age_us)
        self.log.tick(self.now_us)
        self.commit()

    def clean(self, wait_us: int = 0) -> int:
        """Once that time has passed; how many segments were written anew."""
        self.now_us += wait_us
        return clean_all(self.log, self.now_us)

    @property
    def gone(self) -> set[int]:
        """The offsets of the messages that are not there any more."""
        return {row.offset for row in self.rows} - set(offsets_of(self.log.view()))


def test_a_message_goes_when_its_time_is_over() -> None:
    stream = Stream()
    one = stream.append(ttl("1"), KEPT, times=3)[::2]
    hour = stream.append(ttl("1h"), ttl("never"), ttl("00"), KEPT)[:1]
    half_minute = stream.append(ttl("0.5m"), KEPT)[:1]
    stream.seal()
    stream.clean()
    assert not stream.gone
    assert stream.log.cleaning_due_us(stream.now_us) == S
    stream.clean(S - 1)
    assert not stream.gone
    assert stream.clean(1) == 1
    assert stream.gone == {*one}
    assert stream.log.cleaning_due_us(stream.now_us) == 30 * S
    stream.clean(29 * S)
    assert stream.gone == {*one, *half_minute}
    stream.clean(3600 * S)
    assert stream.gone == {*one, *half_minute, *hour}
    assert stream.log.cleaning_due_us(stream.now_us) is None
    assert not stream.log.wants_cleaning(10**18)
    again = open_log(stream.vfs.crash_clone(Keep.ALL), CONFIG, must_exist=True)  # type: ignore[union-attr]
    assert offsets_of(again.view()) == offsets_of(stream.log.view())


def test_where_it_is_not_allowed_nothing_goes() -> None:
    stream = Stream(replace(CONFIG, expires=False))
    gone = stream.append(ttl("1"), KEPT)[:1]
    stream.seal()
    stream.clean(10 * S)
    assert not stream.gone
    stream.log.configure(CONFIG)
    assert stream.log.wants_cleaning(stream.now_us)
    stream.clean()
    assert stream.gone == {*gone}


def test_what_is_not_allowed_any_more_while_it_is_done_is_left() -> None:
    stream = Stream()
    stream.append(ttl("1"), KEPT)
    stream.seal()
    stream.clean()
    stream.now_us += S
    survey = finished(stream.log.clean(stream.now_us))
    assert isinstance(survey, ExpirySurvey)
    stream.log.cleaned(survey, stream.now_us)
    task = finished(stream.log.clean(stream.now_us))
    assert isinstance(task, Cleaning)
    stream.log.configure(replace(CONFIG, expires=False))
    assert not stream.log.cleaned(task, stream.now_us)
    assert not stream.gone


def test_what_is_known_of_a_segment_is_not_read_again() -> None:
    stream = Stream()
    stream.append(ttl("10"), KEPT, times=100)
    stream.seal()
    stream.clean(1)
    for _ in range(3):
        assert stream.log.clean(stream.now_us) is None
        stream.now_us += S
    assert stream.log.clean(stream.now_us) is None
    stream.clean(10 * S)
    assert len(stream.gone) == 100


def test_batches_without_such_messages_are_not_read() -> None:
    stream = Stream()
    stream.append(Told(value=b"x" * 2_000_000), times=2)
    stream.append(ttl("1"), KEPT)
    stream.append(Told(value=b"x" * 2_000_000))
    stream.commit()
    moved = []
    while (task := stream.log.clean(stream.now_us)) is not None:
        stream.log.cleaned(finished(task), stream.now_us)
        if isinstance(task, ExpirySurvey):
            moved.append(task.moved_bytes)
    assert len(moved) == 3
    assert all(size_bytes < 2_000 for size_bytes in moved)


def test_a_message_with_an_id_stays_as_long_as_the_id_counts() -> None:
    stream = Stream(replace(CONFIG, dedup_window_us=60 * S))
    with_id, without = stream.append(ttl("1", Nats_Msg_Id="x"), ttl("1"), KEPT)[:2]
    stream.seal()
    stream.clean(59 * S)
    assert stream.gone == {without}
    stream.clean(S)
    assert stream.gone == {with_id, without}


def test_the_last_message_of_all_stays_until_another_one_follows() -> None:
    stream = Stream(replace(CONFIG, segment_age_us=60 * S))
    stream.append(ttl("1"), times=3)
    stream.commit()
    stream.roll()
    assert stream.log.view().segments[-1].size_bytes < 1_000, "nothing follows"
    stream.clean()
    assert stream.gone == {0, 1}
    assert stream.log.cleaning_due_us(stream.now_us) is None
    last_us = stream.log.last_timestamp_us
    again = open_log(stream.vfs.crash_clone(Keep.ALL), CONFIG, must_exist=True)  # type: ignore[union-attr]
    assert (again.last_timestamp_us, again.log_end) == (last_us, 3)
    stream.append(KEPT, KEPT)
    stream.commit()
    assert stream.log.wants_cleaning(stream.now_us)
    stream.clean()
    assert stream.gone == {0, 1}, "one row of a segment stays, to cover the others"


def test_the_last_message_of_a_segment_goes_once_others_are_committed() -> None:
    stream = Stream(replace(CONFIG, segment_age_us=60 * S))
    stream.append(KEPT, ttl("1"))
    stream.commit()
    stream.roll()
    stream.clean()
    assert not stream.gone
    stream.append(KEPT)
    stream.clean()
    assert not stream.gone, "it is not committed"
    stream.commit()
    stream.clean()
    assert stream.gone == {1}


def test_of_each_leadership_in_a_segment_one_message_stays() -> None:
    stream = Stream()
    stream.append(ttl("1"), ttl("1"))
    stream.log.start_epoch(2)
    stream.append(ttl("1"), ttl("1"), times=2)
    producers = stream.append(ttl("1"), ttl("1"), producer=BatchProducer(9, 1, 0))
    stream.log.start_epoch(3)
    stream.seal()
    stream.clean(S)
    assert stream.gone == {0, 2, 3, 4, producers[0]}
    assert not stream.log.wants_cleaning(10**18)
    headers = [header for header, _ in batches_of(stream.log.view())]
    assert [one.base_offset for one in headers] == [0, *(one.end_offset for one in headers[:-1])]


def test_a_segment_does_not_grow_for_longer_than_an_hour() -> None:
    hour_us = 3600 * S
    for age_us, expires, wanted_us in (
        (None, True, hour_us),
        (24 * hour_us, True, hour_us),
        (60 * S, True, 60 * S),
        (24 * hour_us, False, 24 * hour_us),
        (None, False, None),
    ):
        stream = Stream(replace(CONFIG, segment_age_us=age_us, expires=expires))
        stream.append(ttl("1"), KEPT)
        stream.commit()
        assert stream.log.config.roll_age_us == wanted_us
        if wanted_us is None:
            continue
        stream.log.tick(wanted_us - 1)
        assert stream.log.segment_count == 1
        stream.log.tick(wanted_us)
        assert stream.log.segment_count == 2
    stream = Stream(replace(CONFIG, segment_age_us=None, expires=False))
    stream.append(KEPT)
    stream.commit()
    stream.log.configure(CONFIG)
    assert stream.log.due_us(0) is not None
    stream.log.tick(hour_us)
    assert stream.log.segment_count == 2, "another config counts at once"


COMPACTING = replace(CONFIG, compact=True, tombstone_retention_us=1000 * S)


def test_where_keys_are_compacted_a_message_goes_once_the_older_ones_of_its_key_have() -> None:
    stream = Stream(COMPACTING)
    stream.append(Told(key=b"a"), ttl("1", b"b"), ttl("1"), KEPT)
    stream.append(KEPT, times=10)
    stream.seal()
    stream.clean(S)
    assert stream.gone == {1, 2}, "the pass of compaction has come first"
    (late,) = stream.append(ttl("1", b"a"))
    (tombstone,) = stream.append(ttl("1", b"c", None))
    (keyless,) = stream.append(ttl("1"))
    stream.append(KEPT)
    stream.seal()
    stream.clean(S)
    assert stream.gone == {1, 2, keyless}, "too little has come for another pass: the older one would count again"
    stream.append(KEPT, times=200)
    stream.seal()
    stream.clean()
    assert stream.gone == {0, 1, 2, late, tombstone, keyless}, "a tombstone goes with its own time as well"


def test_a_key_whose_older_message_cannot_go_keeps_the_newer_one() -> None:
    stream = Stream(COMPACTING)
    forced = stream.append(Told(key=b"a"), producer=BatchProducer(9, 1, 0))
    (newer,) = stream.append(ttl("1", b"a"))
    (other,) = stream.append(ttl("1", b"b"))
    stream.append(KEPT, times=10)
    stream.seal()
    stream.clean(S)
    assert stream.gone == {other}
    assert not {*forced, newer} & stream.gone
    assert not stream.log.wants_cleaning(stream.now_us + 10 * S)


def test_a_cut_log_is_looked_at_again() -> None:
    stream = Stream()
    stream.append(ttl("1"), KEPT, times=80)
    stream.seal()
    stream.clean()
    middle = stream.log.view().segments[1].base_offset
    run(stream.log, stream.log.truncate(middle))
    del stream.rows[middle:]
    stream.append(KEPT, ttl("1"), times=80)
    stream.seal()
    stream.clean(S)
    assert stream.gone == {row.offset for row in stream.rows if row.told is not KEPT}


def test_a_cut_while_it_is_looked_at() -> None:
    stream = Stream()
    stream.append(ttl("1"), KEPT, times=80)
    stream.seal()
    stream.now_us += S
    while not isinstance(task := stream.log.clean(stream.now_us), ExpirySurvey):
        stream.log.cleaned(finished(task), stream.now_us)
    run(stream.log, stream.log.reset(0))
    stream.log.cleaned(finished(task), stream.now_us)
    assert stream.log.clean(stream.now_us) is None


@pytest.mark.parametrize("what", ["cut", "another config", "off and on"])
def test_what_was_judged_and_not_written_is_judged_anew(what: str) -> None:
    stream = Stream()
    gone = stream.append(ttl("1"), KEPT, times=3)[::2]
    stream.seal()
    stream.append(KEPT, times=3)
    stream.commit()
    stream.clean()
    stream.now_us += S
    survey = finished(stream.log.clean(stream.now_us))
    assert isinstance(survey, ExpirySurvey)
    stream.log.cleaned(survey, stream.now_us)  # and the writing waits for its rate
    if what == "cut":
        run(stream.log, stream.log.truncate(stream.log.log_end - 1))
        del stream.rows[-1:]
    elif what == "another config":
        stream.log.configure(replace(CONFIG, max_bytes=10**9))
    else:
        stream.log.configure(replace(CONFIG, expires=False))
        stream.append(KEPT, times=60)
        stream.seal()
        stream.clean(S)
        assert not stream.gone
        stream.log.configure(CONFIG)
    stream.clean(S)
    assert stream.gone == {*gone}


def test_what_is_written_by_rules_that_are_others_now_is_not_taken() -> None:
    stream = Stream()
    gone = stream.append(ttl("1"), KEPT, times=3)[::2]
    stream.seal()
    stream.clean()
    stream.now_us += S
    stream.log.cleaned(finished(stream.log.clean(stream.now_us)), stream.now_us)
    task = finished(stream.log.clean(stream.now_us))
    assert isinstance(task, Cleaning)
    stream.log.configure(replace(CONFIG, dedup_window_us=10 * S))
    assert not stream.log.cleaned(task, stream.now_us)
    assert not stream.gone
    stream.clean(60 * S)
    assert stream.gone == {*gone}


def test_a_failure_is_tried_again_later() -> None:
    vfs = FaultyVfs(MemoryVfs())
    stream = Stream(vfs=vfs)
    stream.append(ttl("1"), KEPT, times=3)
    stream.seal()
    stream.clean()
    stream.now_us += S
    stream.log.cleaned(finished(stream.log.clean(stream.now_us)), stream.now_us)
    cleaning = stream.log.clean(stream.now_us)
    assert isinstance(cleaning, Cleaning)
    vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.kind is FileOperationKind.WRITE else None
    with pytest.raises(OSError, match="No space"):
        finished(cleaning)
    vfs.plan = no_faults
    stream.log.cleaned(cleaning, stream.now_us)
    assert not stream.log.wants_cleaning(stream.now_us)
    retry_us = limits.COMPACTION_RETRY_MS * 1_000
    assert stream.log.cleaning_due_us(stream.now_us) == stream.now_us + retry_us
    stream.clean(retry_us)
    assert stream.gone == {0, 2, 4}
    assert stream.log.state is LogState.WRITABLE


def test_a_segment_that_retention_has_removed_is_forgotten() -> None:
    stream = Stream()
    stream.append(ttl("5"), KEPT, times=200)
    stream.seal()
    stream.clean()
    assert stream.log.segment_count > 3
    start = stream.log.view().segments[2].base_offset
    removal = give_up_before(stream.log, start)
    assert removal is not None
    removal.run()
    stream.clean(5 * S)
    assert stream.gone >= {row.offset for row in stream.rows if row.told is not KEPT}


def test_too_many_segments_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRING_SEGMENTS_MAX", 2)
    stream = Stream()
    stream.append(ttl("9"), KEPT, times=60)
    stream.append(ttl("5"), KEPT, times=60)
    stream.append(ttl("7"), KEPT, times=60)
    stream.seal()
    stream.clean()
    assert stream.log.segment_count > 6
    for seconds, text in ((5, "5"), (7, "7"), (9, "9")):
        stream.now_us = seconds * S
        stream.clean()
        wanted = {row.offset for row in stream.rows if row.told.headers and row.told.headers["Nats-TTL"] <= text}
        assert stream.gone == wanted


def test_a_forgotten_segment_that_is_due_at_once_stays_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time 0 was taken for none: the next forgotten segment's time replaced it."""
    monkeypatch.setattr(limits, "EXPIRING_SEGMENTS_MAX", 1)
    stream = Stream()
    stream.append(ttl("5"), KEPT, times=60)
    stream.seal()
    view, expirer = stream.log.view(), Expirer()
    for segment, next_us in zip(view.segments, (0, 0, 9 * S), strict=False):
        expirer.not_written(segment.base_offset, next_us - limits.COMPACTION_RETRY_MS * 1_000, is_voided=False)
        expirer.written()
    expirer.cut(view.segments[1].base_offset)  # only the first one is left, which was forgotten
    for segment in view.segments[:-1]:
        segment.entries = PackedEntries(b"")  # no segment is to be checked for the first time
    assert expirer.due_us(view.segments[:-1], CONFIG, stream.log.log_end) == 0


def test_the_flag_goes_with_the_rows() -> None:
    stream = Stream()
    stream.append(KEPT, times=3)
    stream.append(ttl("1h"), KEPT, times=3)
    stream.seal()
    assert [header.flags & MAY_EXPIRE for header, _ in batches_of(stream.log.view())][:6] == [0, 0, 0, 8, 8, 8]
    stream.clean()
    assert batches_of(stream.log.view())[0][0].flags == MAY_EXPIRE, "small batches are one now"


def test_what_is_compressed_is_looked_into() -> None:
    stream = Stream(replace(CONFIG, segment_bytes=20_000, compression=Compression.ZSTD))
    stream.append(ttl("5"), *[Told(value=b"x" * 1_000)] * 10, times=2)
    stream.seal()
    stream.clean()
    file = stream.vfs.open(stream.log.view().segments[0].path, read_only=True)
    assert codec.read_header(file.read_at(SCHEMA_BYTES, PREFIX_BYTES)).flags == MAY_EXPIRE | COMPRESSED_ZSTD
    file.close()
    stream.clean(5 * S)
    assert stream.gone == {0, 11}


def test_damage_ends_it_and_is_told() -> None:
    stream = Stream()
    stream.append(ttl("1"), KEPT, times=5)
    stream.seal()
    stream.clean()
    path = stream.log.view().segments[0].path
    assert path.startswith(DIRECTORY)
    file = stream.vfs.open(path)
    file.write_at(1_400, b"\xff")
    file.close()
    stream.now_us += S
    survey = finished(stream.log.clean(stream.now_us))
    assert isinstance(survey, ExpirySurvey)
    stream.log.cleaned(survey, stream.now_us)
    assert stream.log.state is LogState.READ_ONLY
    assert not stream.log.wants_cleaning(10**18)
