"""Brokers whose streams have companion logs, as the part above will use them: marks, and what the consumers have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.base.errors import RemoteError
from penstock.base.ids import PartitionId, PartitionKey
from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES
from penstock.live.marks import Decided, MadeUnder, decode, encode
from penstock.messages import AddCompanionRequest, AppendResponse, Response
from penstock.metadata.companions import marks_key
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import CompanionRow, ReadCompanionRows
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member


def _mark_of(name: bytes) -> tuple[bytes, bytes]:
    """Return a mark that hides nothing, with a name of up to 7 bytes."""
    mark = Decided(MadeUnder(leader_epoch=1, log_end=0, at_us=int.from_bytes(name, "big")))
    return mark.kind.encode(), encode(mark)


def _name_of(row: CompanionRow) -> bytes:
    number = decode((row.key or b"").decode(), row.value or b"").under.at_us
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


class Taken:
    """The consumer of one broker's companion logs: names of the marks, in their order."""

    def __init__(self) -> None:
        self.keys: dict[PartitionKey, list[bytes | None]] = {}
        self.ends: dict[PartitionKey, int] = {}
        self.resets = 0

    def applying(self, _key: PartitionKey) -> Callable[[Sequence[CompanionRow]], Sequence[CompanionRow]]:
        """Apply nothing in a disk thread."""
        return lambda rows: rows

    def take(self, key: PartitionKey, rows: Sequence[CompanionRow], end: int) -> None:
        """Take the next rows, which follow those of before."""
        assert all(self.ends.get(key, 0) <= row.offset < end for row in rows)
        self.keys.setdefault(key, []).extend(map(_name_of, rows))
        self.ends[key] = end

    def reset(self, key: PartitionKey, begin: int) -> None:
        """Begin anew at that offset."""
        self.forget(key)
        self.ends[key] = begin

    def forget(self, key: PartitionKey) -> None:
        """Begin anew."""
        self.resets += 1
        self.keys.pop(key, None)
        self.ends.pop(key, None)

    def committed(self, partition: Partition) -> None:
        """Nothing waits for messages."""


def key_of(broker: Broker, name: str = "s") -> PartitionKey:
    """The key of the stream's first partition."""
    return PartitionKey(broker.node.image.by_name(name).stream_id, PartitionId(0))


def companion(broker: Broker, name: str = "s") -> Partition:
    """Its companion log on that broker."""
    return broker.node._partitions[marks_key(key_of(broker, name))]


def target(broker: Broker, name: str = "s") -> Partition:
    """The stream's first partition on that broker."""
    return broker.node._partitions[key_of(broker, name)]


def of_companion(broker: Broker) -> str:
    """The folder of its companion log."""
    key = companion(broker).key
    return f"streams/{key.stream_id}-__marks-{key_of(broker).stream_id}/{key.partition}"


def flip_mark(disk: MemoryVfs, folder: str, number: int) -> None:
    """Flip a bit of the n-th batch of marks."""
    (name,) = [one for one in disk.list(folder) if one.endswith(".arrows")]
    path = f"{folder}/{name}"
    file = disk.open(path, read_only=True)
    position = SCHEMA_BYTES
    for _ in range(number):
        position += codec.read_header(file.read_at(position, codec.PREFIX_BYTES)).size_bytes
    size_bytes = codec.read_header(file.read_at(position, codec.PREFIX_BYTES)).size_bytes
    file.close()
    flip(disk, path, position + size_bytes - 8)


def consume(broker: Broker) -> Taken:
    """Have a consumer take the rows of that broker's companion logs from now on."""
    taken = broker.node._replicas.companions.consumer = Taken()
    return taken


def add(broker: Member, name: str = "s") -> None:
    """The broker asks for companion logs of a stream."""
    answers: list[Response | RemoteError] = []
    broker.node._cluster.link.ask(AddCompanionRequest(stream_id=key_of(broker, name).stream_id), answers.append)
    broker.brokers.run(500)
    (answer,) = answers
    assert not isinstance(answer, RemoteError), answer


Answers = list[AppendResponse | RemoteError]


def mark(broker: Broker, *keys: bytes, name: str = "s") -> Answers:
    """Append a mark for each name; what the caller hears is in the list once it hears."""
    answers: Answers = []
    found = broker.node._router.storing
    found.append_to_companion(target(broker, name), list(map(_mark_of, keys)), answers.append)
    broker.turn()
    return answers


def marks(broker: Broker, name: str = "s", *, committed: bool = True) -> list[bytes | None]:
    """The names of the marks in the companion log of that broker."""
    log = companion(broker, name)
    end = log.committed_end if committed else log.log.log_end
    read = ReadCompanionRows(log.log.view(), 0, end)
    read.run()
    return [_name_of(row) for row in read.rows]


def with_companion(brokers: Brokers, **config: object) -> Brokers:
    """They hold a stream `s`, which has companion logs."""
    caller = brokers.leader.create("s", subject="s", **{"replicas": len(brokers.members), **config})
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    add(brokers.led("s"))
    return brokers
