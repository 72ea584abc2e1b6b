"""The file `listened_file`: for each partition the last time at which it is known to have had a subscribed leader.

A gap that began while this broker was down begins there (see `gaps`).

Rules: the file only makes gaps shorter, and never claims more than was known when it was written. If it is missing,
torn or of an earlier run, gaps are longer. A damaged one stops no start: it is logged, and overwritten. It is
overwritten in place about once a second, and synced when the broker stops: killing the process loses a second of it, a
power loss some more. For partitions led here it holds the time at which the NATS connection last worked; for others,
when their leader's broker last reported a NATS connection. A partition with one replica uses the broker's time, without
an entry, unless it has a gap of its own. A start may know an older image of the metadata: entries of streams that it
does not know stay until it is registered. A time in the future is ignored: the clock was wrong when it was written.

    listened   u32 CRC-32C of the JSON, u32 its length, JSON: {"broker_us": …, "until": [[until_us, [stream_id,
               partition, stream_id, partition, …]], …]}; bytes after that are of an earlier, longer one
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import CorruptionError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.hot.crc import crc32c
from penstock.node.partition.partition import Partition
from penstock.node.replicas.roles import Roles
from penstock.node.step import Lane, Outbox
from penstock.node.subscriptions.nats_listener import NatsListener
from penstock.vfs import Vfs

LISTENED_PATH = "listened"
_HEAD = struct.Struct("<II")
_INTERVAL_US = limits.LISTENED_INTERVAL_MS * 1_000
_PARTITION_US = 1_000  # the more partitions, the less often
_MAY_BE_TORN = "It is overwritten in place without a sync, so a power loss may tear it"
_LONGER = "gaps that began while this broker was down are reported longer"


class _Content(msgspec.Struct, frozen=True):
    broker_us: int
    until: list[tuple[int, list[int]]]


_decoder = msgspec.json.Decoder(_Content)


@dataclass(frozen=True, slots=True)
class ListenedTimes:
    """The content of the file; wall-clock times in µs."""

    broker_us: int = 0  # this broker was subscribed for its led partitions until then; 0 if unknown
    until_us: Mapping[PartitionKey, int] = field(default_factory=dict)  # of partitions with a time of their own

    def was_led_by_others(self, key: PartitionKey) -> bool:
        """True if other brokers led the partition when the file was written."""
        return self.until_us.get(key, self.broker_us) != self.broker_us

    def until(self, key: PartitionKey, *, is_replicated: bool) -> int:
        """Return when the partition last had a subscribed leader; 0 if unknown."""
        return self.until_us.get(key, 0 if is_replicated else self.broker_us)


@dataclass(frozen=True, slots=True)
class _Save:
    """A disk task that overwrites the file."""

    vfs: Vfs
    content: bytes
    is_last: bool = False

    def run(self) -> None:
        with closing(self.vfs.open(LISTENED_PATH, create=True)) as file:
            file.write_at(0, self.content)
            if self.is_last:
                file.sync()


def read_listened(vfs: Vfs, now_us: int) -> ListenedTimes:
    """Read the file of the last run; an empty `ListenedTimes` if it is missing or empty. Blocks.

    CorruptionError; OSError if it is there and cannot be read.
    """
    try:
        found = _decoded(vfs)
    except FileNotFoundError:
        found = None
    if found is None:
        return ListenedTimes()
    keys = {
        PartitionKey(StreamId(stream_id), PartitionId(partition)): until_us
        for until_us, flat in found.until
        if until_us <= now_us
        for stream_id, partition in zip(flat[::2], flat[1::2], strict=False)
    }
    return ListenedTimes(found.broker_us if found.broker_us <= now_us else 0, keys)


def _decoded(vfs: Vfs) -> _Content | None:
    with closing(vfs.open(LISTENED_PATH, read_only=True)) as file:
        head = file.read_at(0, _HEAD.size)
        if not head:
            return None  # power was lost before its first bytes were on the disk
        if len(head) < _HEAD.size:
            raise CorruptionError(LISTENED_PATH, 0, f"{_HEAD.size} bytes", f"{len(head)} bytes")
        crc, length = _HEAD.unpack(head)
        if length > limits.LISTENED_BYTES_MAX:
            raise CorruptionError(LISTENED_PATH, 4, f"a length up to {limits.LISTENED_BYTES_MAX}", length)
        body = bytes(file.read_at(_HEAD.size, length))
    if (found_crc := crc32c(body)) != crc:
        raise CorruptionError(LISTENED_PATH, 0, f"CRC-32C {crc:08x} of {length} bytes", f"{found_crc:08x}")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(LISTENED_PATH, _HEAD.size, "JSON with broker_us and until", error) from None


class ListenedFile:
    """Reads and writes this broker's file."""

    def __init__(
        self,
        vfs: Vfs,
        outbox: Outbox,
        partitions: Mapping[PartitionKey, Partition],
        roles: Roles,
        listening: NatsListener,
    ) -> None:
        self._vfs = vfs
        self._outbox = outbox
        self._partitions = partitions
        self._roles = roles
        self._listening = listening
        self._broker_us = 0
        self._earlier = ListenedTimes()
        self._written = b""
        self._is_saving = False
        self._next_us = 0  # elapsed

    def load(self, now_us: int) -> ListenedTimes:
        """Read the file of the last run; a damaged one is logged. Blocks."""
        try:
            self._earlier = read_listened(self._vfs, now_us)
        except CorruptionError as error:
            self._outbox.notice(str(error.advised(f"{_MAY_BE_TORN}; {_LONGER}")))
        except OSError as error:
            self._outbox.notice(f"{LISTENED_PATH} cannot be read: {error.strerror or error}; {_LONGER}")
        self._broker_us = self._earlier.broker_us
        return self._earlier

    def tick(self, now: Now, nats_proven_us: int | None) -> None:
        """Write the file if it is due. `nats_proven_us`: wall-clock time when the NATS connection last worked."""
        if self._is_saving or now.elapsed_us < self._next_us:
            return
        self._next_us = now.elapsed_us + _INTERVAL_US + len(self._partitions) * _PARTITION_US
        content = self._content(now, nats_proven_us)
        if content != self._written:
            self._is_saving, self._written = True, content
            self._outbox.work(Lane.WRITE, _Save(self._vfs, content).run, self._saved)

    def stop(self, now: Now) -> None:
        """Write and sync the file at the end of the run; blocks. If that fails, the next gap is reported longer."""
        with suppress(OSError):
            _Save(self._vfs, self._content(now, now.wall_us), is_last=True).run()

    def _saved(self, error: Exception | None) -> None:
        self._is_saving = False
        if error is not None:
            self._written = b""  # not reported: more important writes to that disk fail as well

    def _content(self, now: Now, nats_proven_us: int | None) -> bytes:
        if nats_proven_us is not None:
            self._broker_us = self._listening.until_us(min(nats_proven_us, now.wall_us))
        until: dict[int, list[int]] = {}
        for key, partition in self._partitions.items():
            if (until_us := self._until_us(partition)) is not None:
                until.setdefault(until_us, []).extend(key)
        if not self._listening.knows_streams:
            for key, until_us in self._earlier.until_us.items():
                if key not in self._partitions:
                    until.setdefault(until_us, []).extend(key)
        body = msgspec.json.encode(_Content(self._broker_us, list(until.items())))
        return _HEAD.pack(crc32c(body), len(body)) + body

    def _until_us(self, partition: Partition) -> int | None:
        """Return the partition's own time in the file; None if the broker's counts."""
        if partition.is_deaf:
            return None
        own_us = self._listening.gaps.open_since(partition.key)
        if not partition.is_replicated:
            return own_us
        until_us = self._roles.others_listened_us(partition)
        known = (self._broker_us if until_us is None else until_us, own_us)
        return min(one for one in known if one is not None)
