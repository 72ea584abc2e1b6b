"""The schema message: its fixed bytes, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import schema


def test_ids_come_back() -> None:
    for stream_id, partition in ((0, 0), (1, 0), (2**63 - 1, 2**31 - 1)):
        message = schema.schema_message(stream_id, partition)
        assert len(message) == schema.SCHEMA_BYTES == 568
        assert schema.check_schema_message(message + b"what follows") == (stream_id, partition)


@pytest.mark.parametrize(("stream_id", "partition"), [(-1, 0), (2**63, 0), (1, -1), (1, 2**31)])
def test_ids_that_do_not_fit_are_a_programmers_error(stream_id: int, partition: int) -> None:
    with pytest.raises(AssertionError):
        schema.schema_message(stream_id, partition)


def test_arrow_reads_schema_and_metadata() -> None:
    found = pa.ipc.read_schema(pa.BufferReader(schema.schema_message(10, 3)))
    assert found.remove_metadata() == schema.arrow_schema()
    assert all(field.nullable for field in found)
    assert found.metadata == {
        b"penstock.format": b"1",
        b"penstock.stream_id": b"000000000000000a",
        b"penstock.partition": b"00000003",
    }


def test_every_single_flipped_bit_is_found_outside_the_ids() -> None:
    message = bytearray(schema.schema_message(0xA, 0xB))
    unchecked = set()
    for position in range(len(message)):
        for bit in range(8):
            message[position] ^= 1 << bit
            try:
                schema.check_schema_message(message)
            except (CorruptionError, RemoteError):
                pass
            else:
                unchecked.add(position)
            message[position] ^= 1 << bit
    assert unchecked == {*range(92, 100), *range(144, 160)}


@pytest.mark.parametrize(
    "digits",
    [
        b"-000000000000001",
        b"+000000000000001",
        b" 00000000000000a",
        b"0x0000000000000a",
        b"0000_0000_0000_1",
        b"000000000000000A",
        b"g000000000000000",
        b"8000000000000000",
    ],
)
def test_other_spellings_of_an_id_are_refused(digits: bytes) -> None:
    message = bytearray(schema.schema_message(10, 0))
    message[144:160] = digits
    with pytest.raises(CorruptionError):
        schema.check_schema_message(message)


def test_a_newer_format_is_refused_by_number_and_told_apart_from_damage() -> None:
    message = bytearray(schema.schema_message(10, 0))
    message[212:213] = b"2"
    message[400:500] = bytes(100)  # a newer format may lay out everything else anew
    with pytest.raises(RemoteError, match="format 2") as caught:
        schema.check_schema_message(message, file="f.arrows")
    assert caught.value.code == "unsupported_version"
    assert caught.value.details == {"format_version": 2}


NO_SEGMENTS = [b"", b"9" * 568, b"9" * 567, bytes(568), b"PAR1" * 142, schema.schema_message(1, 0)[:-1]]


@pytest.mark.parametrize("data", NO_SEGMENTS)
def test_what_is_no_segment_is_corruption_and_no_newer_version(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        schema.check_schema_message(data, file="f")
