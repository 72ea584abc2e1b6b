"""Whatever a leader sends: a follower's log takes whole, sound batches in order, or nothing."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LogConfig, LogState, RangeRefusedError
from penstock.commitlog.files.files import segment_path
from penstock.vfs.memory import MemoryVfs
from tests.extent import examples
from tests.logs import DIRECTORY, make_batch, open_log, read_slices

WIDE = LogConfig(segment_bytes=1_000_000)
SPECS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=5)


def chain(specs: list[tuple[int, int, int]]) -> list[bytes]:
    """Batches that go on from one another: rows, step in time, step in epochs of each."""
    made, offset, at_us, epoch = [], 0, 0, 1
    for rows, step_us, epochs in specs:
        at_us, epoch = at_us + step_us, epoch + epochs
        made.append(make_batch(offset, rows, at_us, leader_epoch=epoch)[0])
        offset += rows
    return made


def mutated(parts: list[bytes], random: Random) -> bytes:
    """The same with one thing wrong, or by chance with nothing."""
    how = random.choice(("flip", "cut", "insert", "swap", "drop", "repeat", "patch", "noise"))
    data = bytearray().join(parts)
    place = random.randrange(len(data))
    if how == "flip":
        data[place] ^= 1 << random.randrange(8)
    elif how == "cut":
        del data[place:]
    elif how == "insert":
        data[place:place] = random.randbytes(random.choice((1, 8, 64)))
    elif how == "patch":  # a header's digits, often ones that are sound in themselves
        position = random.choice(range(88, 280))
        data[position] = random.choice(b"0123456789abcdef")
    elif how == "noise":
        data[place : place + 16] = random.randbytes(16)
    else:
        number = random.randrange(len(parts))
        other = random.randrange(len(parts))
        changed = list(parts)
        if how == "swap":
            changed[number], changed[other] = changed[other], changed[number]
        elif how == "drop":
            del changed[number]
        else:
            changed.insert(number, changed[other])
        data = bytearray().join(changed)
    return bytes(data)


@settings(max_examples=examples(400), deadline=None)
@given(specs=SPECS, seed=st.integers(0, 2**32))
def test_mutated_ranges_are_refused_or_good(specs: list[tuple[int, int, int]], seed: int) -> None:
    parts = chain(specs)
    data = mutated(parts, Random(seed))
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    file = disk.open(segment_path(DIRECTORY, 0))
    try:
        appended = log.append_fetched(data)
    except RangeRefusedError:
        assert (log.log_end, file.size()) == (0, SCHEMA_BYTES)
    else:
        # What was taken is a beginning of what was sent: nothing that differs has the right checksum.
        whole = b"".join(parts)
        assert whole.startswith(data)
        assert file.read_at(SCHEMA_BYTES, file.size()) == data
        assert (
            appended.log_end == log.log_end == sum(codec.read_header(part).count for part in parts[: appended.batches])
        )
    assert log.state is LogState.WRITABLE
    assert len(read_slices(disk, log.view())) == log.log_end


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=3000))
def test_noise_is_refused(data: bytes) -> None:
    log = open_log(MemoryVfs(), WIDE)
    try:
        assert log.append_fetched(data).batches == 0
        assert data == b""
    except RangeRefusedError:
        assert log.log_end == 0
