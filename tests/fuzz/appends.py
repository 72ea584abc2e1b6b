"""What producers ask to be appended once, by whole requests to a broker without sockets; a list says what is to come.

An input is a row of steps. Each is one request, numbers and batch, sound or hostile:

| bytes | say                                                                                         |
|-------|---------------------------------------------------------------------------------------------|
| 1     | which producer; or an id that is none                                                       |
| 1     | which epoch; or a number that is none                                                       |
| 1     | how its sequence follows, how much time has passed, whether the broker is killed before it  |
| 1     | how many rows, whether their subjects are the stream's, whether the batch is damaged        |
| 6     | where, and what stands there: the checksum fits, so that the rows are looked at             |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from types import ModuleType
from typing import Any

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import codec, layout
from penstock.batch.codec import BatchProducer
from penstock.batch.header import CRC_POSITION
from penstock.hot.crc import crc32c_with_gap
from penstock.ingest.producers import ProducerBatch
from penstock.messages import AppendOnceRequest, AppendOnceResponse, Request
from penstock.wire.bodies import decode_request_body, request_body
from tests.property.test_producers import WINDOW_US, Batch, Model
from tests.unit.node.harness import Broker, batch_of

STEP = struct.Struct("<BBBBHI")
_STEPS_MAX = 12
_WHO = (1, 2, 3, 2**63 - 1)
_EPOCHS = (0, 1, 2, 2**32 - 1)
_NO_ID = (0, -1, 2**63, 2**64 - 1, None, "7")
_NO_EPOCH = (-1, 2**32, None, 1.5)
_NO_SEQUENCE = (-1, 2**63, 2**64 - 1, None)
_FAR = (7, 2**31, 2**63 - 1)
_OF_THE_BATCH = (ErrorCode.CORRUPT_BATCH, ErrorCode.BAD_REQUEST, ErrorCode.TOO_LARGE)


class _Producers:
    """A broker, and what the rules say that it holds."""

    def __init__(self) -> None:
        self.broker = Broker().start()
        self.broker.create("orders", dedup_window_ms=None)
        self.stream_id = self.broker.stream_id("orders")
        self.model = Model(100)
        self.values: list[bytes] = []

    def step(self, who: int, epoch: int, how: int, size: int) -> tuple[object, object, object]:
        """Let time pass, or the broker be killed; then producer, epoch and sequence of what is asked for."""
        if how >> 5 == 7:
            self.broker = self.broker.crash().start()
        elif how >> 5 == 6:
            self.broker.clock.advance_ms(WINDOW_US / 1_000 if how >> 3 & 1 else 1_000)
        self.model.now_us = self.broker.clock.wall_us
        if who >= 250:
            return _NO_ID[who % len(_NO_ID)], 0, 0
        if epoch >= 250:
            return _WHO[who % 4], _NO_EPOCH[epoch % len(_NO_EPOCH)], 0
        own = [one for one in self.model.log if one.producer.producer_id == _WHO[who % 4]]
        return _WHO[who % 4], _EPOCHS[epoch % 4], self._sequence(own, how & 7, size)

    @staticmethod
    def _sequence(own: list[Batch], how: int, size: int) -> object:
        end = own[-1].place.end_sequence if own else 0
        return (
            end,
            own[-1].place.sequence if own else 0,
            0,
            end + 1,
            max(0, end - 1),
            own[size % len(own)].place.sequence if own else 1,
            _FAR[size % len(_FAR)],
            _NO_SEQUENCE[size % len(_NO_SEQUENCE)],
        )[how]

    def ask(self, numbers: tuple[object, object, object], raw: bytes, *, is_foreign: bool = False) -> object:
        """What becomes of a request, compared with what is to become of it. Foreign: its subjects are another's."""
        request = self._request(*numbers)
        if request is None:
            return "no request"
        end = self._log_end()
        answer = self.broker.replies[self.broker.request(request, raw)].response
        if isinstance(answer, RemoteError) and answer.code in _OF_THE_BATCH:
            assert self._log_end() == end
            return answer.code
        assert not is_foreign, answer
        producer = BatchProducer(request.producer_id, request.producer_epoch, request.sequence)
        rows = codec.read_header(raw).count
        expected = self.model.answer(producer, rows)
        if isinstance(expected, ErrorCode):
            assert isinstance(answer, RemoteError), (answer, expected)
            assert answer.code == expected, (answer, expected)
        else:
            assert isinstance(answer, AppendOnceResponse), (answer, expected)
            place = (self.model.store(producer, rows).place if expected is None else expected)[2:]
            assert (answer.base_offset, answer.end_offset, answer.timestamp_us) == place, (answer, place)
            assert answer.duplicate == (expected is not None)
        if expected is None:
            end += rows
            self.values += _values(raw)
        assert self._log_end() == end
        return expected[2:4] if isinstance(expected, ProducerBatch) else expected

    def _log_end(self) -> int:
        end = self.broker.stream("orders").partitions[0].log_end
        assert end is not None
        return end

    def _request(self, producer_id: object, epoch: object, sequence: object) -> AppendOnceRequest | None:
        """As a connection makes it of its bytes; None: it is refused there, as it must be."""
        sound = AppendOnceRequest(stream_id=self.stream_id, producer_id=1, sequence=0)
        api, version, body = request_body(sound)
        named = {"producer_id": producer_id, "producer_epoch": epoch, "sequence": sequence}
        fields = msgspec.msgpack.decode(body) | named
        is_sound = producer_id in _WHO and epoch in _EPOCHS and sequence not in _NO_SEQUENCE
        try:
            request: Request = decode_request_body(api, version, msgspec.msgpack.encode(fields))
        except RemoteError as error:
            code = error.code
        else:
            code = ""
        assert code == ("" if is_sound else ErrorCode.BAD_REQUEST), named
        if code:
            return None
        assert isinstance(request, AppendOnceRequest)
        return request

    def check(self) -> None:
        """All that was stored is there, once, in order, and says of whom it is."""
        rows = self.broker.read("orders")
        assert [row.offset for row in rows] == list(range(len(self.values)))
        assert [row.value or b"" for row in rows] == self.values
        (partition,) = self.broker.node._partitions.values()
        view = partition.view()
        headers = [header for header, _ in view.batches(0, view.log_end)]
        found = [BatchProducer(one.producer_id, one.producer_epoch, one.producer_sequence) for one in headers]
        assert found == [one.producer for one in self.model.log]


def _is_foreign(size: int) -> bool:
    return size >> 4 & 3 == 3


def _is_damaged(size: int) -> bool:
    return size >> 6 == 3


def _batch(number: int, size: int, position: int, patch: int) -> bytes:
    subject = "others.x" if _is_foreign(size) else "orders.x"
    rows = [(subject, b"k" * (size % 2), b"%d.%d" % (number, row), None) for row in range(1 + size % 3)]
    raw = bytearray(batch_of(rows))
    if _is_damaged(size):
        at = layout.ROWS_POSITION + position % (len(raw) - layout.ROWS_POSITION - 4)
        struct.pack_into("<I", raw, at, patch)
        raw[CRC_POSITION : CRC_POSITION + 8] = b"%08x" % crc32c_with_gap(bytes(raw), CRC_POSITION)
    return bytes(raw)


def _values(raw: bytes) -> list[bytes]:
    """Of a batch that can be stored, whatever its offsets and timestamps are: it gets others."""
    own = codec.own_copy(raw)
    codec.renumber(own, base_offset=0, timestamp_us=0, leader_epoch=0)
    return [value or b"" for value in codec.check_rows(own).column("value").to_pylist()]


def _steps(data: bytes) -> Iterator[tuple[int, ...]]:
    whole = len(data) // STEP.size * STEP.size
    yield from list(STEP.iter_unpack(data[:whole]))[:_STEPS_MAX]


def appends(modules: Any, data: bytes) -> object:
    """Steps, and then the log before and after a crash."""
    producers = _Producers()
    out: list[object] = []
    for number, (who, epoch, how, size, position, patch) in enumerate(_steps(data)):
        raw = _batch(number, size, position, patch)
        out.append(_looked_at(modules, raw))
        # What is damaged may have another subject by that.
        is_foreign = _is_foreign(size) and not _is_damaged(size)
        out.append(producers.ask(producers.step(who, epoch, how, size), raw, is_foreign=is_foreign))
    producers.check()
    producers.broker = producers.broker.crash().start()
    producers.check()
    for last in {one.producer.producer_id: one for one in producers.model.log}.values():
        first, end, *_ = last.place
        raw = batch_of([("orders.x", None, b"again", None)] * (end - first))
        producers.model.now_us = producers.broker.clock.wall_us
        out.append(producers.ask(last.producer[:3], bytes(raw)))
    return out


def _looked_at(modules: Any, raw: bytes) -> object:
    rows: ModuleType = modules("rows")
    checked = modules("message").MessageChecker(codec.LAYOUT).message(raw)
    if not isinstance(checked, tuple):
        return checked
    mistake = rows.BatchRows(bytearray(raw), codec.LAYOUT).mistake()
    return None if mistake is None else tuple(mistake)


def made_steps(chance: Random) -> bytes:
    """One to twelve steps; two in three go on from where the producer is."""
    return b"".join(
        STEP.pack(
            chance.choice((0, 0, 0, 1, 2, 3, 250, 252)),
            chance.choice((0, 0, 0, 1, 2, 3, 251)),
            chance.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 0xE0, 0xC0, 0xC8, 0x08)),
            chance.choice((0, 1, 2, 0x30, 0xC0, 0xC2)),
            int(chance.random() * 600),
            chance.choice((0, 1, 7, 2**31 - 1, 2**32 - 1)),
        )
        for _ in range(1 + int(chance.random() * 12))
    )
