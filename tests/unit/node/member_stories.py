"""Stories of three brokers in memory, in tests/scenarios/cluster.

| command                                     | does                                                                   |
|---------------------------------------------|------------------------------------------------------------------------|
| `cluster metadata=N`                        | three brokers with empty disks; N becomes the metadata leader          |
| `create N NAME [SUBJECT] [field=value …]`   | a client asks broker N for a stream, on `NAME.>` unless told otherwise |
| `alter N NAME field=value …`                | … for a change of it                                                   |
| `delete N NAME`                             | … for its end                                                          |
| `intake N NAME INTAKE`                      | … to have it open, paused, read_only or sealed                         |
| `truncate N NAME before=OFFSET [dry=yes]`   | a client asks broker N to give up what comes before                    |
| `publish SUBJECT VALUE … [reply=R]`         | messages from NATS, to whoever subscribes                              |
| `append N NAME VALUE …`                     | a client sends a batch to broker N                                     |
| `show NAME`                                 | each partition: the image, and what each replica has and shows         |
| `files N`                                   | the folders of streams on N's disk                                     |
| `brokers`                                   | who leads the metadata, and who is live                                |
| `waits N`                                   | what broker N waits for                                                |
| `kill N …`, `power N …`                     | processes end; with `power` all that is not synced is lost             |
| `stop N`, `start N`, `wipe N`               | a clean stop; a start; an empty disk                                   |
| `copy N`, `start N copy`                    | a copy of its disk is kept; a start on that                            |
| `hang N`, `wake N`                          | it gets no turn, but keeps its connections; it goes on                 |
| `cut N M …`, `heal`                         | no connection between N and these; all connections                     |
| `disk N waits`, `disk N works`              | its disk work is held back; it is done                                 |
| `disk N hangs`                              | the syncs of its logs do not come back until it works                  |
| `disk N spent`                              | no room but what is given back, such as the reserve                    |
| `disk N full`, `disk N fails` `[A,B]`       | no room, or no sync; for files that begin so                           |
| `flip N NAME OFFSET`                        | a bit flips on its disk, in the batch that holds this offset           |
| `tick MS`                                   | time passes                                                            |

A line begins with its broker: `1 => r …` is an ack of broker 1 on the reply subject r, `2 -> c1 …` its answer to a
client.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, Offset, PartitionId, PartitionKey
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    Request,
    Response,
    SetIntakeRequest,
    SetIntakeResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.metadata.image import ClusterImage
from penstock.node.partition.partition import Partition
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, Plan, no_faults
from penstock.vfs.memory import MemoryVfs
from tests.unit.node.harness import Row, batch_of
from tests.unit.node.members import Brokers, Member
from tests.unit.node.stories import ack_line, field_of, value_of


def _full(where: str) -> Plan:
    paths = tuple(where.split(","))
    return lambda one: (
        FileFault(errno.ENOSPC) if one.kind is FileOperationKind.WRITE and one.path.startswith(paths) else None
    )


def _failing(where: str) -> Plan:
    paths = tuple(where.split(","))
    return lambda one: (
        FileFault(errno.EIO) if one.kind is FileOperationKind.SYNC and one.path.startswith(paths) else None
    )


def _spent(memory: MemoryVfs) -> Plan:
    left = 0

    def plan(one: FileOperation) -> FileFault | None:
        nonlocal left
        if one.kind not in (FileOperationKind.WRITE, FileOperationKind.TRUNCATE):
            return None
        file = memory.open(one.path)
        size = file.size()
        file.close()
        grows = one.position + one.length - size if one.kind is FileOperationKind.WRITE else min(0, one.length - size)
        if grows > left:
            return FileFault(errno.ENOSPC)
        left -= max(0, grows) if one.kind is FileOperationKind.WRITE else grows
        return None

    return plan


_PLANS: dict[str, Callable[[str], Plan]] = {
    "works": lambda folder: no_faults,
    "waits": lambda folder: no_faults,
    "hangs": lambda folder: no_faults,
    "full": _full,
    "fails": _failing,
}


_DAMAGE = Row(-1, "", None, b"(and then damage)", None)


class MemberStory:
    """Brokers 1 to 3, which are the first voters."""

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = (1, 2, 3)
        self._disks: dict[int, tuple[MemoryVfs, str]] = {}  # of who is down, with the data directory's name
        self._copies: dict[int, tuple[MemoryVfs, str]] = {}  # of disks, as they were once

    def tell(self, command: str) -> list[str]:
        """Carry out one command."""
        word, *rest = command.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        plain = [part for part in rest if "=" not in part]
        method: Callable[..., Iterator[str] | None] = getattr(self, f"_{word}")
        lines = list(method(*plain, **options) or ())
        return [*(line for member in self._up() for line in _news(member)), *lines]

    def _up(self) -> list[Member]:
        return [self._members[number] for number in self._ids if number in self._members.members]

    def _image(self) -> ClusterImage:
        """What the cluster agrees on, as far as any broker that is up has heard."""
        return max((member.image for member in self._up()), key=lambda image: image.index)

    def _leaders(self) -> list[int]:
        return [member.broker_id for member in self._up() if member.quorum.is_leader]

    def _ask(self, number: str, request: Request, raw: bytes = b"") -> None:
        self._members[int(number)].request(request, raw)
        self._members.settle()

    # Brokers, network, time

    def _cluster(self, metadata: str, cleaner: str = "on") -> None:
        settings = {} if cleaner == "on" else {"cleaner_bytes_per_s": 0}
        self._members = Brokers(*self._ids, **settings)
        self._tick("5000")
        leader = self._members.leader
        if leader.broker_id != int(metadata):
            leader.quorum.hand_over(int(metadata))
            self._tick("1000")
        assert self._leaders() == [int(metadata)]

    def _copy(self, number: str) -> None:
        member = self._members[int(number)]
        self._copies[int(number)] = member.memory.crash_clone(), member.disk_name

    def _start(self, number: str, which: str = "") -> None:
        assert which in ("", "copy")
        memory, disk = (self._copies if which else self._disks).pop(int(number))
        self._members.start(int(number), memory, disk)
        self._members.settle()

    def _stop(self, number: str) -> None:
        disk = self._members[int(number)].disk_name
        self._disks[int(number)] = self._members.stop(int(number)), disk

    def _kill(self, *numbers: str, power: bool = False) -> None:
        for number in map(int, numbers):
            member = self._members[number]
            left = self._members.kill(number)
            self._disks.setdefault(number, (left if power else member.memory, member.disk_name))  # of a copy: the newer
        if self._members.members:
            self._members.settle()

    def _power(self, *numbers: str) -> None:
        self._kill(*numbers, power=True)

    def _wipe(self, number: str) -> None:
        self._disks[int(number)] = MemoryVfs(), f"another {self._disks[int(number)][1]}"

    def _hang(self, number: str) -> None:
        self._members.hang(int(number))

    def _wake(self, number: str) -> None:
        self._members.wake(int(number))

    def _cut(self, one: str, *others: str) -> None:
        for other in others:
            self._members.cut(int(one), int(other))
        self._members.settle()

    def _heal(self) -> None:
        for member in self._up():
            self._members.join(member.broker_id, *(other.broker_id for other in self._up()))
        self._members.settle()

    def _tick(self, ms: str) -> None:
        self._members.run(int(ms))

    def _disk(self, number: str, what: str, where: str = "") -> None:
        assert what in ("works", "waits", "hangs", "full", "spent", "fails")
        member = self._members[int(number)]
        member.disk_runs_at_once = what != "waits"
        member.syncs_hang = what == "hangs"
        member.vfs.plan = _spent(member.memory) if what == "spent" else _PLANS[what](where)
        self._members.settle()

    def _flip(self, number: str, name: str, offset: str) -> None:
        member = self._members[int(number)]
        partition = _replica(member, name, 0)
        assert partition is not None
        view = partition.log.view()
        segment, extent = view.batch_at(int(offset))
        file = member.memory.open(view.segments[segment].path)
        position = extent.end_position - 8
        file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 1]))
        file.close()

    def _nats(self, number: str, what: str, subject: str = "") -> None:
        assert what in ("up", "down", "forbids")
        member = self._members[int(number)]
        if what == "up":
            member.nats_back()
        elif what == "down":
            member.nats_down()
        else:
            member.nats.forbid(subject)
        self._members.settle()

    # Streams and messages

    def _create(self, number: str, name: str, subject: str = "", **config: str) -> None:
        fields = {
            "name": name,
            "subject": subject or f"{name}.>",
            **{key: field_of(value) for key, value in config.items()},
        }
        self._ask(number, CreateStreamRequest(config=msgspec.convert(fields, StreamConfig)))

    def _alter(self, number: str, name: str, **changes: str) -> None:
        fields = {key: field_of(value) for key, value in changes.items()}
        self._ask(number, AlterStreamRequest(name=name, changes=fields))

    def _intake(self, number: str, name: str, intake: str) -> None:
        self._ask(number, SetIntakeRequest(name=name, intake=Intake(intake)))

    def _truncate(self, number: str, name: str, *, before: str, dry: str = "no") -> None:
        stream_id = self._image().by_name(name).stream_id
        request = TruncateRequest(stream_id=stream_id, before=Offset(int(before)), is_dry_run=dry == "yes")
        self._ask(number, request)

    def _delete(self, number: str, name: str) -> None:
        self._ask(number, DeleteStreamRequest(name=name))

    def _publish(self, subject: str, *values: str, reply: str | None = None) -> None:
        self._members.publish(subject, *map(value_of, values), reply=reply)

    def _append(self, number: str, name: str, *values: str) -> None:
        batch = batch_of([(f"{name}.x", None, value_of(value), None) for value in values])
        stream_id = self._image().by_name(name).stream_id
        self._ask(number, AppendRequest(stream_id=stream_id), bytes(batch))

    def _fetch(self, number: str, name: str, *, offset: str, wait_ms: str) -> None:
        stream_id = self._image().by_name(name).stream_id
        self._ask(number, FetchRequest(stream_id=stream_id, offset=Offset(int(offset)), wait_ms_max=int(wait_ms)))

    def _get(self, number: str, name: str, *, offset: str | None = None, subject: str | None = None) -> None:
        which = {"offset": None if offset is None else Offset(int(offset)), "subject": subject}
        self._ask(number, GetRequest(stream_id=self._image().by_name(name).stream_id, **which))

    # What there is

    def _show(self, name: str) -> Iterator[str]:
        for partition, state in enumerate(self._image().by_name(name).partitions):
            which = f"{name}/{partition}" if partition else name
            leader = state.leader or "nobody"
            eligible = f" eligible={_tuple(state.eligible)}" if state.eligible else ""
            unsure = f" unsure={_tuple(state.unsure)}" if state.unsure else ""
            yield f"{which} isr={_tuple(state.isr)} leader={leader} epoch={state.leader_epoch}{eligible}{unsure}"
            for number in self._ids:
                if (member := self._members.members.get(BrokerId(number))) is None:
                    yield f"{number}: is down"
                elif (replica := _replica(member, name, partition)) is not None:
                    rows = member.read(name, partition, damage=_DAMAGE)
                    shown = " ".join("null" if row.value is None else row.value.decode() for row in rows)
                    log = replica.log
                    ends = f"log=[{log.log_start}, {log.log_end})"
                    yield f"{number}: {_role(replica)}, {ends}, shows {shown or 'nothing'}"

    def _brokers(self) -> Iterator[str]:
        image = self._image()
        leaders = self._leaders()
        live = _tuple(tuple(sorted(image.live_brokers())))
        yield f"metadata leader {' and '.join(map(str, leaders)) or 'nobody'}, live {live}"

    def _waits(self, number: str) -> Iterator[str]:
        yield f"{number}: {self._members[int(number)].node.waits_for or 'nothing'}"

    def _gaps(self, number: str, name: str) -> Iterator[str]:
        member = self._members[int(number)]
        partition = _replica(member, name, 0)
        assert partition is not None
        for gap in member.node._listener.gaps_of(partition):
            end = "open" if gap.end_us is None else f"{(gap.end_us - gap.start_us) / 1e6:.3f} s"
            ago_s = (self._members.clock.now.wall_us - gap.start_us) / 1e6
            yield f"{number} has a gap of {end}, begun {ago_s:.3f} s ago: {gap.reason}"

    def _files(self, number: str) -> Iterator[str]:
        paths = self._members[int(number)].memory.files()
        yield " ".join(sorted({path.rpartition("/")[0] for path in paths if path.startswith("streams/")})) or "none"


def _replica(member: Member, name: str, partition: int) -> Partition | None:
    if name not in member.image.names:
        return None
    key = PartitionKey(member.image.by_name(name).stream_id, PartitionId(partition))
    return member.node._partitions.get(key)


def _news(broker: Member) -> Iterator[str]:
    number = broker.broker_id
    for ack in broker.acks:
        yield f"{number} {ack_line(ack)}"
    callers = [caller for caller in broker.replies if isinstance(caller, str) and caller.startswith("c")]
    for caller in callers:
        broker.payloads.pop(caller, None)
        yield f"{number} -> {caller} {_answer(broker.replies.pop(caller).response)}"
    for notice in broker.notices:
        yield f"{number} ! {notice}"
    if broker.failure:
        yield f"{number} cannot go on: {broker.failure}"
    broker.acks.clear()
    broker.notices.clear()
    broker.failure = ""


def _answer(response: Response | RemoteError) -> str:
    match response:
        case RemoteError():
            return f"error {response}"
        case CreateStreamResponse():
            return "created" if response.created else "there already"
        case AlterStreamResponse():
            return "altered"
        case SetIntakeResponse():
            return f"is {response.stream.intake}"
        case TruncateResponse():
            return f"begins at {response.log_start}: {response.messages} messages and {response.size_bytes} bytes go"
        case DeleteStreamResponse():
            return "deleted"
        case AppendResponse():
            return f"appended [{response.base_offset}, {response.end_offset}) fsynced={response.fsynced}"
        case GetResponse():
            return f"got the message at offset {response.offset}"
        case FetchResponse():
            return f"fetched [{response.base_offset}, {response.end_offset}) committed_end={response.committed_end}"
    raise AssertionError(response)


def _tuple(numbers: tuple[Any, ...]) -> str:
    return "(" + ",".join(map(str, numbers)) + ")"


def _role(partition: Partition) -> str:
    if partition.leadership is not None:
        return f"leads epoch {partition.leadership.leader_epoch}{', mute' if partition.is_mute else ''}"
    if partition.following is not None:
        return f"follows {partition.following.leader} in epoch {partition.following.leader_epoch}"
    return "waits"
