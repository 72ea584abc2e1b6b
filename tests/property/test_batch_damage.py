"""Whatever the bytes are, the checks answer with CorruptionError or RemoteError; they never crash and never believe."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import codec, layout, schema
from penstock.batch.header import ENDS_RUN, KNOWN_FLAGS, NO_RUN, OF_RUN, PACKING
from penstock.batch.reader import open_segment
from tests.batch_samples import MIXED, ROWS, Row, message_of, rows_of, sealed, segment_of, with_header
from tests.extent import each_change

LARGE = message_of([Row(b"s.%d" % n, b"k" * (n % 5), b"v" * 300, None) for n in range(500)])


def refused(data: bytes | bytearray) -> bool:
    """Whether `verify` refuses `data`, and nothing else happens."""
    try:
        codec.verify(data)
    except CorruptionError:
        return True
    return False


def all_checks(data: bytes | bytearray) -> None:
    """Run every check that meets bytes of strangers; any exception but the two expected ones gets out."""
    for check in (codec.read_header, codec.verify, schema.check_schema_message):
        try:
            check(data)
        except (CorruptionError, RemoteError):
            continue
        if check is codec.verify:
            try:
                codec.check_rows(data).validate(full=True)
            except CorruptionError:
                continue


@given(st.integers(0, 8 * len(LARGE) - 1))
def test_any_flipped_bit_of_a_large_message_is_found(bit: int) -> None:
    damaged = bytearray(LARGE)
    damaged[bit // 8] ^= 1 << bit % 8
    assert refused(damaged)


@given(start=st.integers(0, len(LARGE) - 1), content=st.binary(min_size=1, max_size=64))
def test_overwritten_bytes_are_found(start: int, content: bytes) -> None:
    damaged = bytearray(LARGE)
    damaged[start : start + len(content)] = content
    del damaged[len(LARGE) :]
    assert refused(damaged) == (damaged != LARGE)


@given(st.integers(0, len(LARGE) - 1))
def test_a_cut_message_is_refused(size: int) -> None:
    assert refused(LARGE[:size])


@given(
    st.binary(max_size=1500)
    | st.binary(max_size=1500).map(lambda tail: layout.TEMPLATE[:88] + tail)
    | st.binary(max_size=1500).map(lambda tail: layout.TEMPLATE + tail)
    | st.binary(min_size=96, max_size=96).map(lambda head: layout.TEMPLATE[:88] + head.hex().encode() + bytes(600))
    | st.binary(max_size=568).map(lambda tail: schema.schema_message(1, 0)[: 568 - len(tail)] + tail)
)
def test_random_bytes_meet_only_the_expected_errors(data: bytes) -> None:
    all_checks(data)


TELLING_NUMBERS = [-(2**63), -1, 0, 1, 4, 7, 8, 16, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1]
NUMBERS = st.sampled_from(TELLING_NUMBERS) | st.integers(0, 300)


@st.composite
def forged_messages(draw: st.DrawFn) -> bytearray:
    """Messages that are right in everything that a checksum covers, and wrong in what they say of themselves."""
    message = message_of(draw(ROWS))
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(["nodes", "places", "body", "rows", "length"])):
            case "nodes":
                position = layout.NODES_POSITION + 8 * draw(st.integers(0, 11))
                layout.INT64.pack_into(message, position, draw(NUMBERS))
            case "places":
                position = layout.BUFFERS_POSITION + 8 * draw(st.integers(0, 31))
                layout.INT64.pack_into(message, position, draw(NUMBERS))
            case "rows":
                layout.INT64.pack_into(message, layout.ROWS_POSITION, draw(NUMBERS))
            case "length":
                layout.INT64.pack_into(message, layout.BODY_LENGTH_POSITION, draw(NUMBERS))
            case "body":
                start = draw(st.integers(layout.BODY_POSITION, len(message) - 4))
                message[start : start + 4] = draw(st.binary(min_size=4, max_size=4))
    return sealed(message)


@given(forged_messages())
def test_what_passes_all_checks_is_sound_in_arrow(message: bytearray) -> None:
    try:
        codec.verify(message)
        rows = codec.check_rows(message)
    except CorruptionError:
        return
    rows.validate(full=True)
    values = rows_of(rows)  # looks at every value
    again = codec.reencode(message, base_offset=1, timestamp_us=1, leader_epoch=1)
    codec.verify(again)
    assert rows_of(codec.check_rows(again)) == values


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "version": st.integers(0, 255),
            "flags": st.integers(0, 2**16 - 1),
            "size_bytes": st.integers(0, 2**32 - 1),
            "count": st.integers(0, 2**32 - 1) | st.integers(0, 10),
            "base_offset": st.integers(0, 2**64 - 1) | st.integers(0, 10),
            "end_offset": st.integers(0, 2**64 - 1) | st.integers(0, 10),
            "min_timestamp_us": st.integers(-(2**63), 2**63 - 1),
            "max_timestamp_us": st.integers(-(2**63), 2**63 - 1),
            "producer_id": st.integers(0, 2**64 - 1),
            "run_id": st.binary(min_size=16, max_size=16),
            "run_plan": st.integers(0, 2**64 - 1),
        },
    )
)
def test_a_header_is_believed_only_within_its_bounds(fields) -> None:
    message = with_header(message_of(MIXED), **fields)
    try:
        header = codec.verify(message)
    except CorruptionError:
        assert fields
        return
    assert header.version == 1
    assert header.flags & ~KNOWN_FLAGS == 0
    assert header.size_bytes == len(message)
    assert header.count == len(MIXED) <= header.end_offset - header.base_offset
    assert header.end_offset < 2**63
    assert header.min_timestamp_us <= header.max_timestamp_us
    is_run = bool(header.flags & OF_RUN)
    assert header.run_id != NO_RUN if is_run else not (header.run_plan or header.flags & ENDS_RUN)


@given(st.binary(min_size=PACKING.size, max_size=PACKING.size))
def test_two_spellings_never_mean_the_same_header(header: bytes) -> None:
    digits = header.hex().encode()
    start = layout.TEMPLATE[:88]
    try:
        believed = codec.read_header(start + digits)
    except CorruptionError:
        return
    assert PACKING.pack(*astuple(believed)) == header


@given(batches=st.lists(ROWS, max_size=3), cut=st.integers(0, 1200), tail=st.sampled_from([b"", bytes(50), bytes(900)]))
def test_a_torn_segment_gives_the_batches_before_the_tear(batches: list[list[Row]], cut: int, tail: bytes) -> None:
    messages = [message_of(rows) for rows in batches]
    torn = segment_of(*messages, message_of(MIXED)[:cut])
    if cut == 0:
        torn += tail  # a tail of zeros is unwritten; zeros within a batch could be anything and are reported
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0.arrows")
        path.write_bytes(torn)
        with open_segment(path) as reader:
            found = [rows_of(batch) for batch in reader]
    assert found == [*batches, *([MIXED] if cut >= len(message_of(MIXED)) else [])]


HOSTILE = """
import random, struct, sys
from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout
from tests.batch_samples import MIXED, message_of, sealed

chance = random.Random(int(sys.argv[1]))
refused = sound = 0
original = message_of(MIXED * 20)
places = layout.BUFFERS.unpack_from(original, layout.BUFFERS_POSITION)
for _ in range(1500):
    message = bytearray(original)
    # Mostly the value offsets: an Arrow reader follows them wherever they point.
    begin, size = places[2 * (number := chance.choice((4, 5, 6, 7, 8, 9, 11, 14))) :][:2]
    if size:
        place = layout.BODY_POSITION + begin + chance.randrange(size) // 4 * 4
        number = chance.choice((-1, -(2**31), 2**31 - 1, 2**30, 2**24, chance.randrange(400)))
        message[place : place + 4] = struct.pack("<i", number)
    sealed(message)
    try:
        codec.verify(message)
        rows = codec.check_rows(message)
    except CorruptionError:
        refused += 1
    else:
        rows.to_pylist()
        codec.encode_arrow(rows)
        sound += 1
print(refused, sound)
"""


@each_change
def test_hostile_value_offsets_never_kill_the_process() -> None:
    # In a process of its own: what goes wrong here is a SIGSEGV, not an exception.
    seed = random.randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", HOSTILE, str(seed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": ":".join(["src", ".", *filter(None, sys.path)])},
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    refused_count, sound_count = map(int, done.stdout.split())
    assert refused_count > 500
    assert refused_count + sound_count == 1500
