"""Whatever happens to the files of a log: it opens, gives no wrong message, and deletes nothing that can be read."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import RemoteError
from penstock.batch import layout
from penstock.commitlog import Log, LogConfig, LogState
from penstock.commitlog.verify import dump
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import examples
from tests.logs import DIRECTORY, Message, append, flush, log_files, messages_in, open_log

CONFIG = LogConfig(segment_bytes=5000)


def written(seed: int) -> tuple[MemoryVfs, list[Message], list[bytes]]:
    """A log of about five segments, its tail not flushed; its messages, and the bytes of its batches."""
    random = Random(seed)
    disk = MemoryVfs()
    log = open_log(disk, CONFIG)
    log.start_epoch(1)
    messages: list[Message] = []
    for number in range(18):
        messages += append(log, random.randint(1, 3), number, size_bytes=random.choice((0, 100, 900)))
        if number in {8, 14}:
            flush(log)
            log.checkpoint()
    batches = [bytes(data) for _, data in log.view().batches(0, log.log_end)]
    return disk.crash_clone(Keep.ALL), messages, batches


def harm(disk: MemoryVfs, random: Random) -> None:
    names = [name for name in disk.list(DIRECTORY) if ".cut-" not in name]
    path = f"{DIRECTORY}/{random.choice(names)}"
    file = disk.open(path)
    size = file.size()
    place = random.randrange(size + 1)
    match random.choice(("flip", "flip", "truncate", "zeros", "garbage", "append", "remove", "swap")):
        case "flip" if place < size:
            file.write_at(place, bytes([file.read_at(place, 1)[0] ^ 1 << random.randrange(8)]))
        case "truncate":
            file.truncate(place)
        case "zeros":
            file.write_at(place, bytes(random.choice((1, 64, 600))))
        case "garbage":
            file.write_at(place, random.randbytes(random.choice((1, 64, 600))))
        case "append":
            file.write_at(size, random.randbytes(random.choice((1, 64, 600))))
        case "remove":
            disk.remove(path)
        case "swap":
            other = disk.open(f"{DIRECTORY}/{random.choice(names)}")
            data = other.read_at(0, other.size())
            file.write_at(0, data)
            file.truncate(len(data))


def on_disk(disk: MemoryVfs) -> bytes:
    """All bytes of segments and side files; the other files may be written anew."""
    found = []
    for name in disk.list(DIRECTORY):
        if ".arrows" not in name:
            continue
        file = disk.open(f"{DIRECTORY}/{name}")
        found.append(file.read_at(0, file.size()))
    return b"\0|\0".join(found)


def readable(log: Log) -> list[Message]:
    """What a consumer gets who steps over damage."""
    found: list[Message] = []
    view = log.view()
    offset = view.log_start
    while offset < view.log_end:
        try:
            header, data = next(view.batches(offset, view.log_end))
        except RemoteError as error:
            after = error.details["end_offset"]
        else:
            found += messages_in(data)
            after = header.end_offset
        assert after > offset
        offset = after
    return found


@settings(max_examples=examples(250))
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_damage_of_any_kind(seed: int, count: int) -> None:
    random = Random(seed)
    disk, messages, batches = written(seed % 5)
    for _ in range(count):
        harm(disk, random)
    before = on_disk(disk)
    there = [batch for batch in batches if batch in before]
    log = open_log(disk, CONFIG)
    after = on_disk(disk)
    assert all(batch in after for batch in there), "a batch that could be read was deleted"
    by_offset = {message[0]: message for message in messages}
    found = readable(log)
    assert all(by_offset[message[0]] == message for message in found), "a wrong message was given"
    assert (log.state is LogState.READ_ONLY) == bool(log.damage)
    for path in log_files(disk):
        assert all(isinstance(row, dict) for row in dump.file_rows(disk, path))
    if log.state is LogState.WRITABLE:
        append(log, 1)
        log.close()
    again = open_log(disk, CONFIG)
    assert readable(again)[: len(found)] == found
    assert (again.state, again.log_start, again.log_end) == (log.state, log.log_start, log.log_end)


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_garbage_in_the_place_of_a_segment(seed: int) -> None:
    random = Random(seed)
    disk = MemoryVfs()
    open_log(disk, CONFIG).close()
    marks = [layout.TEMPLATE[:88], b"\xff\xff\xff\xff", bytes(8), b"0" * 192]
    data = b"".join(random.choice((*marks, random.randbytes(random.randrange(300)))) for _ in range(20))
    disk.open(f"{DIRECTORY}/{0:020d}.arrows").write_at(random.choice((0, 568)), data)
    log = open_log(disk, CONFIG)
    assert log.log_end == 0
    assert data in on_disk(disk) or not log.damage
