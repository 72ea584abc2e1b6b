"""The cleaner as the node runs it: behind everything else, at its rate, one segment at a time."""

from __future__ import annotations

import errno

from penstock.base import limits
from penstock.vfs.faulty import Fault, Kind, no_faults, nth
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
    broker.vfs.plan = nth(0, Fault(errno.ENOSPC), Kind.WRITE, path_end=".cleaned")
    go_on(broker, 2_000)
    (notice,) = broker.notices
    assert "cannot write a segment anew" in notice
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
