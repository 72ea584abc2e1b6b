"""The file `listened`: the last time at which each partition is known to have had a subscribed leader.

A gap that began while this broker was down begins there (see `gaps`).

Rules: the file only makes gaps shorter, and never says more than was known when it was written. One that is missing,
torn or of an earlier run makes them longer. It is written in place about once a second, and synced when the broker
stops: whoever kills the process takes a second of it, whoever cuts the power some more. For what this broker leads, the
time counts at which its connection to NATS last worked; for what others lead, when their brokers last said that they
have NATS. A partition of one replica has that of the broker, and no entry, unless it has a gap of its own. A start may
know an older image of the metadata: what was noted of streams that it does not know stays until it is registered. A
time that lies in the future says nothing: the calendar was wrong when it was noted.

    listened   u32 CRC-32C of the JSON, u32 its length, JSON: {"broker_us": …, "until": [[until_us, [stream_id,
               partition, stream_id, partition, …]], …]}; what follows is of an earlier, longer one
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.hot.crc import crc32c
from penstock.node.listening import Listening
from penstock.node.partition import Partition
from penstock.node.roles import Roles
from penstock.node.step import Lane, Outbox
from penstock.vfs import Vfs

LISTENED_PATH = "listened"
_HEAD = struct.Struct("<II")
_INTERVAL_US = limits.LISTENED_INTERVAL_MS * 1_000
_PARTITION_US = 1_000  # thousands of partitions are gone through less often


class _Content(msgspec.Struct, frozen=True):
    broker_us: int
    until: list[tuple[int, list[int]]]


_decoder = msgspec.json.Decoder(_Content)


@dataclass(frozen=True, slots=True)
class Listened:
    """The content of the file; wall clock times in microseconds."""

    broker_us: int = 0  # until then this broker was subscribed for the partitions that it led; 0: not known
    until_us: Mapping[PartitionKey, int] = field(default_factory=dict)  # of partitions that have a time of their own

    def was_led_by_others(self, key: PartitionKey) -> bool:
        """Whether this broker did not lead the partition when the file was written."""
        return self.until_us.get(key, self.broker_us) != self.broker_us

    def until(self, key: PartitionKey, *, is_replicated: bool) -> int:
        """The last time at which the partition had a subscribed leader; 0: not known."""
        return self.until_us.get(key, 0 if is_replicated else self.broker_us)


@dataclass(frozen=True, slots=True)
class _Save:
    """A disk task: writes the file over the one before."""

    vfs: Vfs
    content: bytes
    is_last: bool = False

    def run(self) -> None:
        with closing(self.vfs.open(LISTENED_PATH, create=True)) as file:
            file.write_at(0, self.content)
            if self.is_last:
                file.sync()


def read_listened(vfs: Vfs, now_us: int) -> Listened:
    """Read the file of the last run; an empty `Listened` if it is missing or damaged. Blocking."""
    try:
        with closing(vfs.open(LISTENED_PATH, read_only=True)) as file:
            crc, length = _HEAD.unpack(file.read_at(0, _HEAD.size))
            if length > limits.LISTENED_BYTES_MAX:
                return Listened()
            body = bytes(file.read_at(_HEAD.size, length))
        if crc32c(body) != crc:
            return Listened()
        found = _decoder.decode(body)
    except (OSError, struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Listened()
    keys = {
        PartitionKey(StreamId(stream_id), PartitionId(partition)): until_us
        for until_us, flat in found.until
        if until_us <= now_us
        for stream_id, partition in zip(flat[::2], flat[1::2], strict=False)
    }
    return Listened(found.broker_us if found.broker_us <= now_us else 0, keys)


class ListenedFile:
    """Writes the file of one broker."""

    def __init__(
        self, vfs: Vfs, outbox: Outbox, partitions: Mapping[PartitionKey, Partition], roles: Roles, listening: Listening
    ) -> None:
        self._vfs = vfs
        self._outbox = outbox
        self._partitions = partitions
        self._roles = roles
        self._listening = listening
        self._broker_us = 0
        self._earlier = Listened()
        self._written = b""
        self._is_saving = False
        self._next_us = 0  # elapsed

    def load(self, now_us: int) -> Listened:
        """Read what the last run wrote. Blocking."""
        self._earlier = read_listened(self._vfs, now_us)
        self._broker_us = self._earlier.broker_us
        return self._earlier

    def tick(self, now: Now, nats_proven_us: int | None) -> None:
        """Write the file if that is due. `nats_proven_us`: when the connection to NATS last worked, wall clock."""
        if self._is_saving or now.elapsed_us < self._next_us:
            return
        self._next_us = now.elapsed_us + _INTERVAL_US + len(self._partitions) * _PARTITION_US
        content = self._content(now, nats_proven_us)
        if content != self._written:
            self._is_saving, self._written = True, content
            self._outbox.work(Lane.WRITE, _Save(self._vfs, content).run, self._saved)

    def stop(self, now: Now) -> None:
        """Write and sync the file at the end of the run; blocking. If that fails, the next gap is told longer."""
        with suppress(OSError):
            _Save(self._vfs, self._content(now, now.wall_us), is_last=True).run()

    def _saved(self, error: Exception | None) -> None:
        self._is_saving = False
        if error is not None:
            self._written = b""  # a disk that fails is told of by those who need it

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
        """The time of its own that a partition has in the file; None: that of the broker counts."""
        if partition.is_deaf:
            return None
        own_us = self._listening.gaps.open_since(partition.key)
        if not partition.is_replicated:
            return own_us
        until_us = self._roles.others_listened_us(partition)
        known = (self._broker_us if until_us is None else until_us, own_us)
        return min(one for one in known if one is not None)
