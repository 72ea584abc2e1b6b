"""The cleaner as the node runs it: behind everything else, at its rate, one segment at a time."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.commitlog import Cleaning, Survey
from penstock.messages import AlterStreamRequest, AlterStreamResponse, SetIntakeRequest
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults, nth
from tests.extent import each_change
from tests.unit.node.harness import Broker, Executed

FOLDER = "streams/00000004-orders/0"


def grown(messages: int = 20, **settings: int) -> Broker:
    """A broker with some sealed segments of lone messages."""
    broker = Broker(**settings).start()
    broker.create("orders", segment_bytes=4096)
    for number in range(messages):
        broker.publish("orders.a", b"%d" % number, reply="r")
    return broker


def segments(broker: Broker) -> list[str]:
    paths = sorted(path for path in broker.memory.files() if path.startswith(FOLDER) and path.endswith(".arrows"))
    return [path.removeprefix(f"{FOLDER}/").lstrip("0").removesuffix(".arrows") for path in paths]


def go_on(broker: Broker, ms: int) -> None:
    """Time, in ticks: each lets the cleaner go on by a slice."""
    for _ in range(0, ms, 100):
        broker.tick(100)


def counters(broker: Broker) -> dict[str, int]:
    return dict(broker.node._budget.counters)


def test_sealed_segments_are_written_anew_and_the_old_files_go_later() -> None:
    broker = grown()
    wanted = broker.read("orders")
    before = segments(broker)
    go_on(broker, 4_000)
    assert set(segments(broker)) == {*before, *(f"{name}.1" for name in before[:-1])}
    assert broker.read("orders") == wanted
    assert counters(broker)["cleaned_segments"] == len(before) - 1
    assert counters(broker)["cleaned_bytes"] > 0
    go_on(broker, limits.CLEANED_KEEP_MS - 4_000)
    assert len(segments(broker)) > len(before)
    go_on(broker, 4_000)
    assert len(segments(broker)) == len(before)
    assert broker.read("orders") == wanted
    assert broker.notices == []
    broker.stop()


def test_nothing_is_cleaned_where_it_is_turned_off() -> None:
    broker = grown(cleaner_bytes_per_s=0)
    before = segments(broker)
    for _ in range(5):
        broker.tick(5_000)
    assert segments(broker) == before


def test_it_goes_no_faster_than_its_rate() -> None:
    broker = grown(40, cleaner_bytes_per_s=2_000)
    anew = []
    for _ in range(12):
        go_on(broker, 1_000)
        anew.append(counters(broker).get("cleaned_segments", 0))
    # A segment is some 3,700 bytes to be read, 1,500 to be written, and the same to be read again.
    assert 2 <= anew[-1] <= 4
    assert anew[2] < anew[7] < anew[-1]
    go_on(broker, 30_000)
    assert counters(broker)["cleaned_segments"] == 9


def cleaning(broker: Broker) -> Executed:
    """The slice that waits for a disk thread, carried out; the node is not told yet."""
    number = next(n for n, work in enumerate(broker.disk) if "Cleaning" in repr(work.run))
    return broker.execute(number)


def test_a_stream_that_is_deleted_meanwhile_takes_no_harm() -> None:
    broker = grown()
    broker.disk_runs_at_once = False
    broker.tick(2_000)
    executed = cleaning(broker)
    broker.delete("orders")
    broker.settle()
    broker.complete(executed)
    broker.settle()
    assert broker.notices == []
    assert segments(broker) == []
    broker.disk_runs_at_once = True
    broker.tick(20_000)
    broker.stop()


def test_a_stop_in_the_middle_leaves_what_was_there() -> None:
    broker = grown()
    wanted = broker.read("orders")
    broker.disk_runs_at_once = False
    broker.tick(2_000)
    broker.complete(cleaning(broker))
    broker.stop()
    after = broker.crash()
    assert after.start().read("orders") == wanted


def test_a_disk_that_refuses_is_told_of_once_and_does_no_harm() -> None:
    broker = grown()
    wanted = broker.read("orders")
    before = segments(broker)
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".cleaned")
    go_on(broker, 2_000)
    (notice,) = broker.notices
    assert "cannot rewrite a segment" in notice
    broker.vfs.plan = no_faults
    go_on(broker, 15_000)
    assert len(segments(broker)) == len(before)
    assert not any(path.endswith(".cleaned") for path in broker.memory.files())
    assert broker.read("orders") == wanted
    broker.publish("orders.a", b"more", reply="r")
    assert len(broker.acked()) == 21


def test_a_reader_gets_all_of_it_while_files_change() -> None:
    broker = grown(30)
    broker.disk_runs_at_once = False
    caller = broker.fetch("orders", 0, bytes_max=1)
    broker.disk_runs_at_once = True
    go_on(broker, 20_000)
    assert caller in broker.replies
    assert [row.offset for row in broker.read("orders")] == list(range(30))


def test_each_old_file_stays_as_long_as_an_answer_may_be_about_to_open_it() -> None:
    broker = grown(40, cleaner_bytes_per_s=4_000)
    before = segments(broker)[:-1]
    began: dict[str, int] = {}
    kept: dict[str, int] = {}
    for now_ms in range(0, 60_000, 100):
        there = set(segments(broker))
        for name in before:
            if f"{name}.1" in there:
                began.setdefault(name, now_ms)
            if name not in there:
                kept.setdefault(name, now_ms - began[name])
        broker.tick(100)
    assert len(kept) == len(before) > 5
    assert max(began.values()) - min(began.values()) > limits.CLEANED_KEEP_MS // 2, "not all at once"
    assert min(kept.values()) >= limits.CLEANED_KEEP_MS - 100
    assert max(kept.values()) <= limits.CLEANED_KEEP_MS + 1_100
    broker.stop()


# Passes of compaction beside the cleaning of others

TABLE = {"compact": True, "segment_bytes": 4096, "dedup_window_ms": None, "tombstone_retention_ms": 0}


def with_keys(broker: Broker, stream: str, messages: int = 40) -> None:
    for _ in range(messages):
        broker.publish(f"{stream}.a", b"v", headers=b"NATS/1.0\r\nPenstock-Key: k\r\n\r\n")


def slices(broker: Broker) -> list[tuple[type, object]]:
    """What the cleaner has run: of each slice its kind, and the piece of work that it is of."""
    works = [getattr(work.run, "__self__", None) for step in broker.steps for work in step.disk]
    return [(type(work), work) for work in works if isinstance(work, Cleaning | Survey)]


def kinds(broker: Broker) -> list[type]:
    return [kind for kind, _ in slices(broker)]


def until_it_surveys(broker: Broker, count: int = 1) -> None:
    """So many slices."""
    for _ in range(600):
        if kinds(broker).count(Survey) == count:
            return
        broker.tick(100)
    raise AssertionError("no pass has begun, or it does not go on")


def test_a_survey_lets_other_streams_be_cleaned() -> None:
    broker = Broker(cleaner_bytes_per_s=10_000).start()
    broker.create("prices", **TABLE)
    broker.create("orders", segment_bytes=4096)
    with_keys(broker, "prices")
    until_it_surveys(broker)
    assert counters(broker)["cleaned_segments"] > 5  # whose small batches are merged
    for number in range(20):
        broker.publish("orders.a", b"%d" % number)
    go_on(broker, 60_000)
    ran = kinds(broker)
    first, last = ran.index(Survey), len(ran) - 1 - ran[::-1].index(Survey)
    between = ran[first:last]
    assert Cleaning in between, "the other stream has waited for the survey"
    assert between.count(Survey) >= 2
    orders = f"streams/{broker.stream('orders').stream_id:08d}-orders/0/"
    assert sum(path.startswith(orders) and path.endswith(".1.arrows") for path in broker.memory.files()) == 4
    assert len(broker.read("prices")) < 20
    broker.stop()


def test_suspended_deletion_keeps_what_limits_and_compaction_would_delete_until_it_ends() -> None:
    broker = Broker().start()
    broker.create("prices", **TABLE, max_messages=10, max_age_ms=60_000)
    broker.ask(AlterStreamRequest(name="prices", changes={"suspend_deletion": "yes"}), AlterStreamResponse)
    with_keys(broker, "prices")
    go_on(broker, 120_000)
    assert len(broker.read("prices")) == 40
    broker.ask(AlterStreamRequest(name="prices", changes={"max_messages": 5}), AlterStreamResponse)
    go_on(broker, 10_000)
    assert len(broker.read("prices")) == 40
    broker.ask(AlterStreamRequest(name="prices", changes={"suspend_deletion": "no"}), AlterStreamResponse)
    go_on(broker, 120_000)
    assert len(broker.read("prices")) < 10
    broker.stop()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_stream_that_is_sealed_before_its_pass_keeps_all(is_sealed: bool) -> None:
    broker = Broker().start()
    broker.create("prices", **(TABLE | {"compaction_lag_ms": 5_000}))
    with_keys(broker, "prices")
    go_on(broker, 4_000)
    assert len(broker.read("prices")) == 40
    if is_sealed:
        broker.request(SetIntakeRequest(name="prices", intake=Intake.SEALED))
    go_on(broker, 30_000)
    assert (len(broker.read("prices")) == 40) == is_sealed
    assert (Survey in kinds(broker)) != is_sealed


@pytest.fixture
def with_second(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker that surveys the stream prices, slice by slice, while a pass over rates is due as well."""
    monkeypatch.setattr(limits, "CLEANING_SLICE_BYTES", 1_000)
    broker = Broker(cleaner_bytes_per_s=2_000).start()
    broker.create("rates", **(TABLE | {"compact": False}))
    broker.create("prices", **TABLE)
    with_keys(broker, "rates", 41)  # so that one more seals no segment
    go_on(broker, 60_000)
    with_keys(broker, "prices")
    until_it_surveys(broker)
    broker.request(AlterStreamRequest(name="rates", changes={"compact": True}))
    with_keys(broker, "rates", 1)  # and so it is looked at
    until_it_surveys(broker, 4)
    assert len({work for kind, work in slices(broker) if kind is Survey}) == 1
    return broker


def test_there_is_one_survey_at_a_time(with_second: Broker) -> None:
    broker = with_second
    go_on(broker, 200_000)
    surveys = [work for kind, work in slices(broker) if kind is Survey]
    assert len(set(surveys)) >= 2
    assert surveys == sorted(surveys, key=surveys.index), "the slices of two surveys take turns"
    second = next(work for work in surveys if work is not surveys[0])
    ran = [work for _, work in slices(broker)]
    assert ran[ran.index(second) - 1] is surveys[0], "the next one does not begin at once"
    assert all(len(broker.read(name)) < 20 for name in ("prices", "rates"))
    broker.stop()


def test_who_waits_for_a_survey_has_small_batches_merged_meanwhile(with_second: Broker) -> None:
    broker = with_second
    (survey,) = {work for kind, work in slices(broker) if kind is Survey}
    before = len(slices(broker))
    with_keys(broker, "rates", 4)  # seals a segment with small batches
    go_on(broker, 200_000)
    ran = [work for _, work in slices(broker)[before:]]
    merging = next(n for n, work in enumerate(ran) if isinstance(work, Cleaning))
    assert survey in ran[merging:]
    broker.stop()


def test_a_stream_that_is_deleted_while_it_waits_for_a_survey(with_second: Broker) -> None:
    broker = with_second
    broker.delete("rates")
    broker.delete("prices")
    broker.create("orders", segment_bytes=4096)
    for number in range(20):
        broker.publish("orders.a", b"%d" % number)
    go_on(broker, 60_000)
    assert broker.notices == []
    assert sum("-orders/" in path and path.endswith(".1.arrows") for path in broker.memory.files()) == 4
    broker.stop()


@each_change
def test_a_merge_that_failed_is_done_once_the_disk_takes_it() -> None:
    broker = grown()
    wanted = broker.read("orders")
    before = segments(broker)
    refused = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal refused
        if operation.kind is not FileOperationKind.WRITE or not operation.path.endswith(".cleaned"):
            return None
        refused += 1
        return FileFault(errno.ENOSPC)

    broker.vfs.plan = plan
    go_on(broker, 10 * 60_000)
    assert 3 <= refused <= 5, "it is tried less and less often"
    assert segments(broker) == before
    broker.vfs.plan = no_faults
    go_on(broker, 10 * 60_000)
    assert set(segments(broker)) == {before[-1], *(f"{name}.1" for name in before[:-1])}
    assert broker.read("orders") == wanted
    assert len(broker.notices) == 1


@each_change
def test_old_files_that_could_not_be_removed_go_later() -> None:
    broker = grown()
    wanted = broker.read("orders")
    before = segments(broker)
    refused = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal refused
        refused += operation.kind is FileOperationKind.REMOVE
        return FileFault(errno.EIO) if operation.kind is FileOperationKind.REMOVE else None

    broker.vfs.plan = plan
    go_on(broker, 3 * 60_000)
    assert len(segments(broker)) > len(before)
    assert 3 <= refused <= 8
    broker.vfs.plan = no_faults
    go_on(broker, 10 * 60_000)
    assert set(segments(broker)) == {before[-1], *(f"{name}.1" for name in before[:-1])}
    assert broker.read("orders") == wanted
