"""For a rollup the older messages of its subject go: once it is committed and sealed, and not if it is lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.base import limits
from penstock.base.config import Compression, StreamConfig
from penstock.batch.codec import BatchProducer
from penstock.batch.header import COMPRESSED_ZSTD, MAY_ROLL_UP_ALL, MAY_ROLL_UP_SUBJECTS
from penstock.commitlog import LogConfig, Survey
from penstock.vfs.memory import Keep, MemoryVfs
from tests.expiring import Told, offsets_of
from tests.keyed import batches_of
from tests.logs import finished, open_log, run
from tests.unit.commitlog.cleaner.test_expiry import KEPT, S, Stream

CONFIG = LogConfig(segment_bytes=4096, rolls_up=True)


def on(subject: bytes, key: bytes | None = None, value: bytes | None = b"v", **headers: str) -> Told:
    return Told({name.replace("_", "-"): one for name, one in headers.items()}, key, value, subject)


def rollup(subject: bytes, key: bytes | None = None, said: str = "sub", **headers: str) -> Told:
    return on(subject, key, Nats_Rollup=said, **headers)


def rolled(**config: object) -> Stream:
    return Stream(replace(CONFIG, **config))  # type: ignore[arg-type]


def test_older_ones_of_its_subject_go_and_it_stays() -> None:
    stream = rolled()
    first = stream.append(on(b"a"), on(b"b"), on(b"ab"), times=3)
    stream.append(rollup(b"a", said="SUB"), on(b"a"), rollup(b"c"))
    stream.seal()
    stream.clean()
    assert stream.gone == {*first[::3]}
    before = offsets_of(stream.log.view())
    second = stream.append(on(b"b"), rollup(b"a"), rollup(b"b"), on(b"b"))
    stream.seal()
    stream.clean()
    assert stream.gone == {
        offset for offset in (*before, *second) if stream.rows[offset].told.subject in (b"a", b"b")
    } - {*second[1:]} | {*first[::3]}
    again = open_log(stream.vfs.crash_clone(Keep.ALL), CONFIG, must_exist=True)  # type: ignore[union-attr]
    assert offsets_of(again.view()) == offsets_of(stream.log.view())


def test_where_it_is_not_allowed_nothing_goes_until_it_is() -> None:
    stream = rolled(rolls_up=False)
    gone = stream.append(on(b"a"), KEPT)[:1]
    stream.append(rollup(b"a"))
    stream.seal()
    stream.clean(10**9)
    assert not stream.gone
    assert stream.log.cleaning_due_us(stream.now_us) is None
    stream.log.configure(CONFIG)
    stream.clean()
    assert stream.gone == {*gone}


def test_one_that_is_not_committed_or_not_sealed_takes_nothing() -> None:
    stream = rolled()
    gone = stream.append(on(b"a"), KEPT)[:1]
    stream.seal()
    committed_end = stream.log.log_end
    stream.append(rollup(b"a"), times=1)
    end = stream.log.log_end
    while stream.log.view().segments[-1].base_offset < end:
        stream.append(KEPT)
    stream.clean(10**12)
    assert not stream.gone, "another leader may not have it"
    run(stream.log, stream.log.truncate(committed_end))
    del stream.rows[stream.log.log_end :]
    stream.seal()
    stream.clean(10**12)
    assert not stream.gone
    stream.append(rollup(b"a"))
    stream.commit()
    stream.clean(10**12)
    assert not stream.gone, "its segment may grow"
    stream.seal()
    stream.clean()
    assert stream.gone == {*gone}


def test_it_waits_until_no_id_counts_any_more() -> None:
    stream = rolled(dedup_window_us=120 * S)
    gone = stream.append(on(b"a"), KEPT)[:1]
    stream.append(rollup(b"a"))
    stream.seal()
    stream.clean(119 * S)
    assert not stream.gone
    assert stream.log.cleaning_due_us(stream.now_us) == 120 * S
    stream.clean(S)
    assert stream.gone == {*gone}


def test_segments_are_sealed_after_an_hour() -> None:
    config = LogConfig.of(StreamConfig(name="s", subject="s", allow_rollup=True))
    assert (config.rolls_up, config.roll_age_us) == (True, limits.EXPIRING_SEGMENT_AGE_MS * 1_000)
    assert (config.following().rolls_up, config.untouched().rolls_up) == (True, False)
    assert config.passes_lag_us == limits.DEDUP_WINDOW_MS_DEFAULT * 1_000


def test_of_a_stream_without_rollups_only_headers_are_read() -> None:
    stream = rolled()
    stream.append(on(b"a"), on(b"b"), rollup(b"b", said="all"), times=30)
    stream.seal()
    survey = None
    while stream.log.wants_cleaning(stream.now_us):
        task = stream.log.clean(stream.now_us)
        if isinstance(task, Survey):
            survey = task
        if task is not None:
            stream.log.cleaned(finished(task), stream.now_us)
    assert survey is not None
    assert (survey.is_whole, survey.has_judged, survey.judged) == (True, False, [])
    assert not stream.gone
    assert stream.log.cleaning_due_us(stream.now_us) is None


def test_the_flags_stay_when_batches_are_merged_thinned_and_compressed() -> None:
    stream = rolled(segment_bytes=40_000, compression=Compression.ZSTD)
    stream.append(on(b"a", value=b"." * 300), on(b"b", value=b"." * 300), times=20)
    stream.append(rollup(b"a"), rollup(b"b", said="all"))
    stream.seal()
    stream.clean()
    assert len(stream.gone) == 20
    (merged, *_), *_ = batches_of(stream.log.view())
    assert merged.flags == MAY_ROLL_UP_SUBJECTS | MAY_ROLL_UP_ALL
    packed = stream.log.view()
    file = stream.vfs.open(packed.segments[0].path, read_only=True)
    raw = file.read_at(0, file.size())
    assert b"%04x" % (MAY_ROLL_UP_SUBJECTS | MAY_ROLL_UP_ALL | COMPRESSED_ZSTD) in raw


def test_what_nothing_else_could_cover_stays() -> None:
    stream = rolled()
    whole = stream.append(on(b"a"), on(b"a"), producer=BatchProducer(9, 1, 0))
    stream.append(rollup(b"a"))
    stream.seal()
    stream.clean()
    assert stream.gone == {whole[0]}


def test_passes_take_a_part_of_the_time_only() -> None:
    stream = rolled()

    def cleaned(took_us: int) -> None:
        while stream.log.wants_cleaning(stream.now_us):
            if (task := stream.log.clean(stream.now_us)) is not None:
                finished(task)
                stream.now_us += took_us if isinstance(task, Survey) else 0
                stream.log.cleaned(task, stream.now_us)

    stream.append(on(b"a"), rollup(b"a"), KEPT)
    stream.seal()
    cleaned(5 * S)
    assert stream.gone == {0}
    late = stream.append(on(b"b"), rollup(b"b"), KEPT)[0]
    stream.seal()
    rest_us = (limits.ROLLUP_PASSES_SHARE - 1) * 5 * S
    assert stream.log.cleaning_due_us(stream.now_us) == stream.now_us + rest_us
    stream.clean(rest_us - 1)
    assert late not in stream.gone
    stream.clean(1)
    assert late in stream.gone


def test_one_that_expires_stays_until_the_others_have_gone() -> None:
    stream = rolled(expires=True, dedup_window_us=60 * S, segment_bytes=8192)
    old = stream.append(on(b"a"), KEPT)[0]
    expiring = stream.append(rollup(b"a", Nats_TTL="1"), on(b"b", Nats_TTL="1"), KEPT)
    stream.seal()
    stream.clean(2 * S)
    assert stream.gone == {expiring[1]}
    stream.clean(58 * S)
    assert stream.gone == {old, *expiring[:2]}


def test_one_that_expires_stays_while_another_of_its_subject_must() -> None:
    """Which covers the offsets of a producer's batch, and would be the last one of its subject again."""
    stream = rolled(expires=True)
    forced = stream.append(on(b"a"), producer=BatchProducer(9, 1, 0))[0]
    old = stream.append(on(b"b"), KEPT)[0]
    expiring = stream.append(rollup(b"a", Nats_TTL="1"), rollup(b"b", Nats_TTL="1"), KEPT)
    stream.seal()
    stream.clean()
    stream.clean(3600 * S)
    assert stream.gone == {old, expiring[1]}
    assert forced not in stream.gone
    stream.log = open_log(stream.vfs.crash_clone(Keep.ALL), stream.log.config, must_exist=True)  # type: ignore[union-attr]
    stream.clean(3600 * S)
    stream.clean(3600 * S)
    assert stream.gone == {old, expiring[1]}, "what is known is found again after a start"


def test_no_power_loss_keeps_what_was_to_go_without_what_it_was_to_go_for() -> None:
    """The rollup goes in the same pass, by its key: its segment may have got its new name, and those before not."""
    stream = rolled(compact=True)
    stream.append(on(b"a", b"a"), KEPT)
    stream.seal()
    at = stream.append(rollup(b"a", b"k"), KEPT)[0]
    stream.seal()
    stream.append(on(b"b", b"k"), KEPT)
    stream.seal()
    stream.clean()
    assert stream.gone == {0, at}
    assert isinstance(stream.vfs, MemoryVfs)
    seen = set()
    for seed in range(40):
        left = open_log(stream.vfs.crash_clone(Keep.SUBSET, Random(seed)), stream.log.config)
        found = offsets_of(left.view())
        assert at in found or 0 not in found
        seen.add(at in found)
    assert seen == {True, False}


def test_no_older_message_of_a_key_counts_again() -> None:
    """What covers the offsets of a producer's batch stays; so does the last one of its key, whatever rolls it up."""
    stream = rolled(compact=True)
    forced = stream.append(on(b"b", b"k"), producer=BatchProducer(9, 1, 0))[0]
    last, free = stream.append(on(b"a", b"k"), on(b"a", b"l"), KEPT)[:2]
    stream.append(rollup(b"a"))
    stream.seal()
    stream.clean()
    assert stream.gone == {free}
    assert {forced, last} <= set(offsets_of(stream.log.view()))


def test_it_goes_on_where_too_many_subjects_have_rollups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACTION_KEY_BYTES_MAX", 100)
    stream = rolled()
    old = [stream.append(on(b"%d" % number), KEPT)[0] for number in range(60)]
    for number in range(60):
        stream.append(rollup(b"%d" % number), KEPT)
    stream.seal()
    surveys = 0
    while stream.log.wants_cleaning(stream.now_us):
        task = stream.log.clean(stream.now_us)
        surveys += isinstance(task, Survey)
        if task is not None:
            stream.log.cleaned(finished(task), stream.now_us)
    assert surveys > 2
    assert stream.gone == {*old}


def test_turned_off_in_the_middle_of_a_pass_the_rest_stays() -> None:
    stream = rolled()
    for _ in range(3):
        stream.append(on(b"a"), KEPT)
        stream.seal()
    stream.append(rollup(b"a"))
    stream.seal()
    while not stream.gone:
        task = finished(stream.log.clean(stream.now_us))  # type: ignore[type-var]
        stream.log.cleaned(task, stream.now_us)
    stream.log.configure(replace(CONFIG, rolls_up=False))
    stream.clean()
    assert len(stream.gone) == 1
    stream.log.configure(CONFIG)
    stream.clean(limits.COMPACTION_RETRY_MS * 1_000)
    assert len(stream.gone) == 3


def test_where_not_all_forced_keys_are_known_those_with_keys_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACTION_FORCED_BYTES_MAX", 1)
    stream = rolled(compact=True)
    for number in range(2):
        stream.append(on(b"b", b"k"), producer=BatchProducer(9, 1, number))
    stream.append(on(b"b", b"k"), KEPT)
    stream.seal()
    stream.clean()
    assert not stream.gone, "the first two cover offsets"
    last, keyless = stream.append(on(b"a", b"l"), on(b"a"), KEPT)[:2]
    stream.append(rollup(b"a"))
    stream.seal()
    stream.clean()
    assert stream.gone == {keyless}
    assert last in offsets_of(stream.log.view())


def test_a_log_that_begins_anew_is_looked_at_anew() -> None:
    stream = rolled()
    stream.append(on(b"a"), rollup(b"a"), KEPT, times=30)
    stream.seal()
    stream.clean()
    assert stream.gone
    run(stream.log, stream.log.reset(0))
    stream.rows = []
    stream.append(on(b"a"), rollup(b"a"), KEPT)
    stream.seal()
    stream.clean()
    assert stream.gone == {0}
