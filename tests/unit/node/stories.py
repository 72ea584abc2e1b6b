"""Stories of one broker in memory, in tests/scenarios/broker.

| command                                            | does                                                            |
|----------------------------------------------------|-----------------------------------------------------------------|
| `broker [nats=down] [in_flight=N]`                 | starts a new broker on an empty disk                            |
| `create NAME [subject] [field=value …]`            | creates a stream, on `NAME.>` unless told otherwise             |
| `more=S,S` on `create`, `add=S,S`, `remove=S,S` on `alter` | subjects                                                |
| `alter NAME field=value …`, `delete NAME`          | changes, deletes                                                |
| `publish SUBJECT VALUE … [reply=R] [header=K:V …]` | one read of the NATS connection; `xN` as a value is N bytes     |
| `fetch NAME OFFSET [wait=MS] [min=BYTES]`          | a long poll                                                     |
| `append NAME VALUE … [subject=S] [break=PART]`     | a batch over the socket; `break` damages it first               |
| `get NAME offset=N` or `key=K` or `subject=S`      | one message                                                     |
| `offsets NAME earliest` or `latest` or `+MS`       | list offsets; `+MS` counts from the beginning of the story      |
| `show NAME`, `read NAME`, `find SUBJECT`           | state, all readable messages, streams on a subject              |
| `partition=N` on `fetch` … `offsets`, `read`       | which partition; 0 unless told otherwise                        |
| `disk hold`, `disk run [n]`, `disk all`            | hold disk work back; run it                                     |
| `disk turn`                                        | all disk work is done before anything is carried out            |
| `disk broken`                                      | writes fail half-way and cannot be undone                       |
| `disk KIND fails ERROR [bytes=N]`, `disk works`    | every operation of that kind fails                              |
| `tick MS`, `clock back MS`                         | time passes; the calendar is set back                           |
| `nats down REASON`, `back`, `silent`               | the connection to NATS; `silent` confirms nothing               |
| `nats speaks`                                      | it confirms again                                               |
| `nats refuses NAME`                                | it does not let the broker subscribe for that stream            |
| `nats forbids SUBJECT`, `nats allows SUBJECT`      | permissions change while the connection is there                |
| `nats limit N`                                     | room for N subscriptions; it does not say which it refuses      |
| `subscriptions`                                    | what NATS delivers to the broker                                |
| `gone CALLER`, `stop`, `restart`, `crash`          | a client leaves; the broker's ends                              |
| `folder PATH`, `files [PREFIX]`                    | a stranger's folder; what is on the disk                        |

A line says who is answered: `-> c1 …` an answer to caller 1, `=> r …` an ack on the reply subject r, `! …` a notice.
What waits for the disk is shown only when a story asks for it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.batch.header import CRC_POSITION
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
    FindStreamsRequest,
    FindStreamsResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionInfo,
    Request,
    StreamInfo,
)
from penstock.node.step import Reply
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults
from tests.batch_samples import with_buffer
from tests.unit.node.harness import START_US, Ack, Broker, Row, batch_of, rows_of

_VALUE_OFFSETS = 11  # the buffer's number; see FORMAT.md


def value_of(text: str) -> bytes:
    size = re.fullmatch(r"x(\d+)", text)
    return bytes(int(size.group(1))) if size else text.encode()


def field_of(text: str) -> Any:
    if text in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text]
    return int(text) if text.isdigit() else text


def _partition(options: dict[str, str]) -> PartitionId:
    return PartitionId(int(options.get("partition", "0")))


def _shown(row: Row) -> str:
    value = "null" if row.value is None else row.value.decode() if len(row.value) < 40 else f"{len(row.value)} bytes"
    key = "" if row.key is None else f" key={row.key.decode()}"
    return f"{row.offset}:{row.subject}={value}{key}"


class Story:
    """One broker after the other, on the same disk until a story begins a new one."""

    def __init__(self) -> None:
        self.broker = Broker()
        self._ids: dict[str, int] = {}

    def tell(self, command: str) -> list[str]:
        """Carry out one command."""
        words = command.split()
        options = {}
        plain = []
        headers = []
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if equals and name == "header":
                headers.append(value.replace(":", ": ", 1))
            elif equals and re.fullmatch(r"[a-z_]+", name):
                options[name] = value
            else:
                plain.append(word)
        if headers:
            options["headers"] = "NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in headers) + "\r\n"
        broker = self.broker
        seen = (len(broker.acks), len(broker.notices), set(broker.replies))
        method: Callable[..., list[str] | None] = getattr(self, f"_{words[0]}")
        lines = method(*plain, **options) or []
        if self.broker is not broker:
            seen = (0, 0, set())
        return [*self._news(*seen), *lines]

    def _news(self, acks: int, notices: int, replies: set[Hashable]) -> list[str]:
        broker = self.broker
        lines = [ack_line(ack) for ack in broker.acks[acks:]]
        lines += [
            f"-> {caller} {self._reply_line(caller, reply)}"
            for caller, reply in broker.replies.items()
            if caller not in replies and isinstance(caller, str) and caller.startswith("c")
        ]
        return lines + [f"! {notice}" for notice in broker.notices[notices:]]

    def _ask(self, request: Request, raw: bytes | bytearray = b"") -> None:
        self.broker.request(request, raw)

    def _info(self, name: str) -> StreamInfo:
        found = self.broker.stream(name)
        self._ids[name] = found.stream_id
        return found

    def _id(self, name: str) -> Any:
        return self._ids[name] if name in self._ids else self._info(name).stream_id

    def _reply_line(self, caller: Hashable, reply: Reply) -> str:
        response = reply.response
        payload = self.broker.payloads.get(caller, b"")
        match response:
            case RemoteError():
                return f"error {response}"
            case CreateStreamResponse():
                self._ids[response.stream.name] = response.stream.stream_id
                return f"{'created' if response.created else 'there already'} id={response.stream.stream_id}"
            case AlterStreamResponse():
                return "altered"
            case DeleteStreamResponse():
                return f"deleted id={response.stream_id}"
            case FetchResponse():
                rows = " ".join(map(_shown, rows_of(payload, 1)))
                return (
                    f"[{response.base_offset}, {response.end_offset}) of {response.committed_end}: {rows or 'nothing'}"
                )
            case AppendResponse():
                return f"appended [{response.base_offset}, {response.end_offset}) fsynced={response.fsynced}"
            case GetResponse():
                return f"got {_shown(rows_of(payload, 1)[0])}"
            case ListOffsetsResponse():
                at = response.timestamp_us
                return f"offset={response.offset} at={'none' if at is None else f'{(at - START_US) / 1000:+.0f}ms'}"
            case FindStreamsResponse():
                return f"streams: {' '.join(info.name for info in response.streams) or 'none'}"
        raise AssertionError(response)

    # Life

    def _broker(self, nats: str = "up", in_flight: str | None = None) -> None:
        settings = {} if in_flight is None else {"partition_in_flight_bytes_max": int(in_flight)}
        self._ids = {}
        self.broker = Broker(nats_is_up=nats == "up", **settings).start()

    def _stop(self) -> None:
        self.broker.disk_runs_at_once = True
        self.broker.stop()

    def _restart(self) -> None:
        """On the same files: the process has ended, the machine has not."""
        old = self.broker
        self.broker = Broker(old.memory, clock=old.clock, nats_is_up=True, **old.settings)
        self.broker.nats.forbidden, self.broker.nats.limit = old.nats.forbidden, old.nats.limit
        self.broker.start()

    def _crash(self) -> None:
        self.broker = self.broker.crash().start()

    def _tick(self, ms: str) -> None:
        self.broker.tick(int(ms))

    def _clock(self, back: str, ms: str) -> None:
        assert back == "back"
        self.broker.clock.set_back_ms(int(ms))

    # Streams

    def _create(self, name: str, subject: str = "", timeout_ms: str = "10000", more: str = "", **config: str) -> None:
        fields: Any = {key: field_of(value) for key, value in config.items()}
        fields["more_subjects"] = tuple(filter(None, more.split(",")))
        wanted = msgspec.convert({"name": name, "subject": subject or f"{name}.>", **fields}, StreamConfig)
        self._ask(CreateStreamRequest(config=wanted, timeout_ms=int(timeout_ms)))

    def _alter(self, name: str, add: str = "", remove: str = "", **changes: str) -> None:
        fields = {key: field_of(value) for key, value in changes.items()}
        added, removed = (tuple(filter(None, one.split(","))) for one in (add, remove))
        self._ask(AlterStreamRequest(name=name, changes=fields, add_subjects=added, remove_subjects=removed))

    def _delete(self, name: str) -> None:
        self._ask(DeleteStreamRequest(name=name))

    def _show(self, name: str) -> list[str]:
        info = self._info(name)
        return [line for one in info.partitions for line in self._show_partition(info, one)]

    def _show_partition(self, info: StreamInfo, one: PartitionInfo) -> list[str]:
        which = f"/{one.partition}" if len(info.partitions) > 1 else ""
        line = f"{info.name}{which} id={info.stream_id} epoch={one.leader_epoch} {one.state}"
        line += f" log_start={one.log_start} committed_end={one.committed_end} log_end={one.log_end}"
        dropped = "".join(f" {reason}={count}" for reason, count in sorted(one.dropped.items()))
        gaps = [
            f"gap {(gap.start_us - START_US) / 1000:+.0f}ms to "
            f"{'now' if gap.end_us is None else f'{(gap.end_us - START_US) / 1000:+.0f}ms'}: {gap.reason}"
            for gap in one.gaps
        ]
        return [line + dropped, *gaps]

    def _find(self, subject: str) -> None:
        self._ask(FindStreamsRequest(subject=subject))

    # Messages

    def _publish(self, subject: str, *values: str, reply: str | None = None, headers: str | None = None) -> None:
        block = None if headers is None else headers.encode()
        self.broker.publish(subject, *map(value_of, values), reply=reply, headers=block)

    def _fetch(self, name: str, offset: str, wait: str = "0", **options: str) -> None:
        request = FetchRequest(
            stream_id=self._id(name),
            partition=_partition(options),
            offset=Offset(int(offset)),
            wait_ms_max=int(wait),
            bytes_min=int(options.get("min", "1")),
        )
        self._ask(request)

    def _read(self, name: str, **options: str) -> list[str]:
        rows = self.broker.read(name, _partition(options))
        return [_shown(row) for row in rows] or ["nothing"] * len(options)

    def _get(
        self, name: str, offset: str | None = None, key: str | None = None, subject: str | None = None, **options: str
    ) -> None:
        wanted: Any = None if offset is None else int(offset)
        self._ask(
            GetRequest(
                stream_id=self._id(name),
                partition=_partition(options),
                offset=wanted,
                key=None if key is None else key.encode(),
                subject=subject,
            )
        )

    def _offsets(self, name: str, at: str, **options: str) -> None:
        wanted: Any = at if at in ("earliest", "latest") else START_US + int(at) * 1_000
        self._ask(ListOffsetsRequest(stream_id=self._id(name), partition=_partition(options), at=wanted))

    def _append(self, name: str, *values: str, subject: str | None = None, **options: str) -> None:
        batch = batch_of([(subject or f"{name}.x", None, value_of(value), None) for value in values])
        damage = options.get("break")
        if damage == "crc":
            batch[CRC_POSITION] ^= 1
        elif damage == "offsets":
            batch = with_buffer(batch, _VALUE_OFFSETS, 4, b"\xff\xff\xff\x7f")
        elif damage == "tail":
            del batch[-8:]
        self._ask(AppendRequest(stream_id=self._id(name), partition=_partition(options)), batch)

    # Disk

    def _disk(self, *words: str, **options: str) -> list[str]:
        broker = self.broker
        match words:
            case ("hold",):
                broker.disk_runs_at_once = False
            case ("run",):
                broker.run_disk(int(options.get("n", "0")))
                broker.turn()
            case ("all",):
                broker.settle()
                broker.disk_runs_at_once = True
            case ("turn",):
                # All that is there is done, and the node told, before anything is carried out.
                executed = [broker.execute() for _ in list(broker.disk)]
                for one in executed:
                    broker.node.complete(one.work, one.error, broker.clock.now)
                broker.settle()
            case ("broken",):
                broker.vfs.plan = lambda one: (
                    FileFault(errno.EIO, 100)
                    if one.kind in (FileOperationKind.WRITE, FileOperationKind.TRUNCATE)
                    else None
                )
            case ("works",):
                broker.vfs.plan = no_faults
            case ("waits",):
                return [f"{len(broker.disk)} pieces of disk work"]
            case (kind, "fails", error):
                fault = FileFault(getattr(errno, error), int(options.get("bytes", "0")))
                path = options.get("path", "")

                def plan(operation: FileOperation) -> FileFault | None:
                    return fault if operation.kind is FileOperationKind(kind) and path in operation.path else None

                broker.vfs.plan = plan
            case _:
                raise AssertionError(words)
        return []

    def _folder(self, path: str) -> None:
        file = self.broker.memory.open(f"{path}/0/00000000000000000000.arrows", create=True)
        file.write_at(0, b"somebody's data")

    def _files(self, prefix: str = "") -> list[str]:
        folders = sorted(
            {path.rpartition("/")[0] or "." for path in self.broker.memory.files() if path.startswith(prefix)}
        )
        return folders or ["none"]

    # NATS and clients

    def _nats(self, what: str, *words: str) -> None:
        broker = self.broker
        if what == "down":
            broker.nats_down(" ".join(words))
        elif what == "back":
            broker.nats_back()
        elif what == "silent":
            broker.nats.confirms = False
        elif what == "speaks":
            broker.nats.confirms = True
        elif what == "refuses":
            (sid,) = broker.nats.sids(self._info(words[0]).subject)
            broker.node.subscription_refused(sid, "permissions violation", broker.clock.now)
            broker.turn()
        elif what == "forbids":
            broker.nats.forbid(words[0])
            broker.turn()
        elif what == "allows":
            broker.nats.forbidden.discard(words[0])
        elif what == "limit":
            broker.nats.limit = int(words[0])
        else:
            raise AssertionError(what)

    def _subscriptions(self) -> list[str]:
        return [" ".join(sorted(self.broker.nats.subscriptions.values())) or "none"]

    def _gone(self, caller: str) -> None:
        self.broker.node.callers_disconnected([caller])
        self.broker.open_requests.discard(caller)


def ack_line(ack: Ack) -> str:
    body = ack.body
    if ack.err_code:
        error = body["error"]
        return f"=> {ack.reply} {error['code']}/{error['err_code']} {error['description']}"
    which = f"/{body['partition']}" if body["partition"] else ""
    return f"=> {ack.reply} {body['stream']}{which} seq={body['seq']} epoch={body['epoch']} fsynced={body['fsynced']}"
