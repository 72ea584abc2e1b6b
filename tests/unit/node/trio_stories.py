"""The commands of a story about three brokers; each gives the lines that a person would see.

Rules: a line begins with the broker that it is about. `1 => r …` is an ack of broker 1 on the reply subject r,
`2 -> c1 …` its answer to a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.messages import (
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    Response,
)
from penstock.node.partition import Partition
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.stories import ack_line, field_of, value_of
from tests.unit.node.trio import NUMBERS, Trio


class TrioStory:
    """Three brokers, from their first start on."""

    def __init__(self) -> None:
        self._trio = Trio()

    def tell(self, command: str) -> list[str]:
        """Carry out one command."""
        word, *rest = command.split()
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        plain = [part for part in rest if "=" not in part]
        method: Callable[..., Iterator[str] | None] = getattr(self, f"_{word}")
        lines = list(method(*plain, **options) or ())
        news = [line for number, broker in self._trio.brokers.items() for line in _news(number, broker)]
        return [*news, *lines]

    # Brokers, network, time

    def _cluster(self, metadata: str | None = None) -> None:
        """All three, formed; broker `metadata` leads it."""
        for number in NUMBERS:
            self._trio.start(number)
        self._trio.tick(5_000)
        if metadata is not None:
            self._metadata(metadata)

    def _metadata(self, number: str) -> None:
        (leader,) = self._trio.metadata_leaders()
        if leader != int(number):
            self._trio.brokers[leader].node._cluster.quorum.hand_over(int(number))  # type: ignore[arg-type]
            self._trio.tick(1_000)
        assert self._trio.metadata_leaders() == [int(number)]

    def _start(self, number: str) -> None:
        self._trio.start(int(number))

    def _stop(self, number: str) -> None:
        self._trio.stop(int(number))

    def _kill(self, *numbers: str) -> None:
        for number in numbers:
            self._trio.kill(int(number))

    def _power(self, *numbers: str) -> None:
        for number in numbers:
            self._trio.kill(int(number), power=True)

    def _wipe(self, number: str) -> None:
        self._trio.wipe(int(number))

    def _cut(self, one: str, *others: str) -> None:
        for other in others:
            self._trio.cut(int(one), int(other))

    def _heal(self) -> None:
        self._trio.heal()

    def _tick(self, ms: str) -> None:
        self._trio.tick(int(ms))

    def _disk(self, number: str, what: str) -> None:
        broker = self._trio.brokers[int(number)]
        broker.disk_runs_at_once = what == "works"
        assert what in ("works", "waits")
        self._trio.turn()

    # Streams and messages

    def _create(self, number: str, name: str, subject: str = "", **config: str) -> None:
        fields = {
            "name": name,
            "subject": subject or f"{name}.>",
            **{key: field_of(value) for key, value in config.items()},
        }
        self._trio.ask(int(number), CreateStreamRequest(config=msgspec.convert(fields, StreamConfig)))

    def _delete(self, number: str, name: str) -> None:
        self._trio.ask(int(number), DeleteStreamRequest(name=name))

    def _publish(self, subject: str, *values: str, reply: str | None = None) -> None:
        self._trio.publish(subject, *map(value_of, values), reply=reply)

    def _append(self, number: str, name: str, *values: str) -> None:
        batch = batch_of([(f"{name}.x", None, value_of(value), None) for value in values])
        stream_id = self._trio.image().by_name(name).stream_id
        self._trio.ask(int(number), AppendRequest(stream_id=stream_id), bytes(batch))

    # What there is

    def _show(self, name: str) -> Iterator[str]:
        for partition, state in enumerate(self._trio.image().by_name(name).partitions):
            which = f"{name}/{partition}" if partition else name
            leader = state.leader or "nobody"
            eligible = f" eligible={_tuple(state.eligible)}" if state.eligible else ""
            yield f"{which} isr={_tuple(state.isr)} leader={leader} epoch={state.leader_epoch}{eligible}"
            for number in NUMBERS:
                if number not in self._trio.brokers:
                    yield f"{number}: is down"
                elif (replica := self._trio.partition(number, name, partition)) is not None:
                    rows = self._trio.brokers[number].values(name, partition)
                    shown = " ".join("null" if value is None else value.decode() for value in rows)
                    yield f"{number}: {_role(replica)}, log_end={replica.log.log_end}, shows {shown or 'nothing'}"

    def _brokers(self) -> Iterator[str]:
        image = self._trio.image()
        leaders = self._trio.metadata_leaders()
        live = _tuple(tuple(sorted(image.live_brokers())))
        yield f"metadata leader {' and '.join(map(str, leaders)) or 'nobody'}, live {live}"

    def _files(self, number: str) -> Iterator[str]:
        paths = self._trio.brokers[int(number)].memory.files()
        yield " ".join(sorted({path.rpartition("/")[0] for path in paths if path.startswith("streams/")})) or "none"


def _news(number: int, broker: Broker) -> Iterator[str]:
    for ack in broker.acks:
        yield f"{number} {ack_line(ack)}"
    callers = [caller for caller in broker.replies if isinstance(caller, str) and caller.startswith("c")]
    for caller in callers:
        broker.payloads.pop(caller, None)
        yield f"{number} -> {caller} {_answer(broker.replies.pop(caller).response)}"
    for notice in broker.notices:
        yield f"{number} ! {notice}"
    broker.acks.clear()
    broker.notices.clear()


def _answer(response: Response | RemoteError) -> str:
    match response:
        case RemoteError():
            return f"error {response}"
        case CreateStreamResponse():
            return "created" if response.created else "there already"
        case DeleteStreamResponse():
            return "deleted"
        case AppendResponse():
            return f"appended [{response.base_offset}, {response.end_offset}) fsynced={response.fsynced}"
    raise AssertionError(response)


def _tuple(numbers: tuple[Any, ...]) -> str:
    return "(" + ",".join(map(str, numbers)) + ")"


def _role(partition: Partition) -> str:
    if partition.leadership is not None:
        return f"leads epoch {partition.leadership.leader_epoch}"
    if partition.following is not None:
        return f"follows {partition.following.leader} in epoch {partition.following.leader_epoch}"
    return "waits"
