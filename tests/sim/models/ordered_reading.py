"""Ordered readers of JetStream's API, as clients have them: made anew behind the last message whenever one is missing.

| invariant                                                                         | unless                      |
|-----------------------------------------------------------------------------------|-----------------------------|
| a message is what its sequence has, on a subject that the filter lets through     |                             |
| sequences rise, and no known message that matches lies between two of them        | it may be deleted, replaced |
| … nor before the first one                                                        | as above                    |
| `num_pending` counts what is left: no less than was known when the reader was     | as above                    |
| made, no more than was sent and not surely deleted when it was told               |                             |
| … and in a time in which nothing is sent or deleted it falls by one each time     |                             |
| what was sent after the deletion of the reader was answered is not delivered      |                             |
| a pull request gets no more messages than it asked for                            |                             |
| after all faults the reader comes to the last message                             |                             |

Rules: a push reader has heartbeats and flow control; a pull reader sends one request after the other, often a moment
later, so that it has messages before it whose number changes: the count is not made anew for each of them. A missing
heartbeat, a gap in the consumer's sequences, or a status that ends the reader has it made anew. Below a permitted loss
nothing is checked, and the reader begins at the first message again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.nats import PublishedMessage
from tests.sim.models.api_client import API, ApiClient, field_of, fields_of, status_of
from tests.sim.models.api_stream import ApiStream

_ACK = re.compile(rb"\$JS\.ACK\.([^.]+)\.([^.]+)\.1\.(\d+)\.(\d+)\.(\d+)\.(\d+)")
_AGAIN_US = 400_000
_BEAT_US = 1_500_000
_PULL_BATCH = 7
_EXPIRES_US = 3_000_000
_SLOW = 0.5  # of pull requests
_SLOW_US = 900_000  # longest time until a slow one; no heartbeat is missing yet
_WITH_LASTS = 0.3  # of readers that begin at the first message
_AFTERWARDS_US = 4_000_000  # a deleted reader's inbox is listened to for so long


@dataclass(slots=True)
class _Making:
    """One consumer of a reader: what was there when it was asked for."""

    name: str
    inbox: bytes  # of a push reader
    began_at: int  # last offset before it
    changes: int  # of the stream, then
    next_seq: int = 1  # of the consumer
    is_made: bool = False
    made_us: int | None = None  # when it was answered, of a reader that begins with the last message of each subject
    begins_with_lasts: bool = False
    pending: int | None = None  # told with the last message
    pending_changes: int = 0
    known: frozenset[int] = field(default_factory=frozenset)  # offsets known to match and to be live
    deleted: frozenset[int] = field(default_factory=frozenset)
    deleted_us: int | None = None  # its deletion was answered
    heard_us: int = 0


class OrderedReader:
    """One reader."""

    def __init__(
        self,
        around: Surroundings,
        client: ApiClient,
        stream: ApiStream,
        name: str,
        random: Random,
        *,
        is_push: bool,
        wanted: bytes,
    ) -> None:
        """`wanted`: the filter; empty: all."""
        self.stream = stream
        self.wanted = wanted
        self.last = -1  # offset of the last message
        self.name = name
        self._around = around
        self._client = client
        self._random = random
        self._is_push = is_push
        self._making: _Making | None = None
        self._pull_inbox = b""
        self._pull_left = 0
        self._makings = 0
        self._is_over = False
        self._losses = 0  # permitted ones of the stream, when it began
        self._make()
        self._watch()

    def _trace(self, what: str) -> None:
        self._around.trace.add(self.name, what)

    @property
    def _now_us(self) -> int:
        return self._around.scheduler.now_us

    def end(self) -> None:
        """The stream is deleted."""
        self._is_over = True
        self._leave()

    @property
    def has_all(self) -> bool:
        """True if it has come to the last known message that it wants."""
        return self._is_over or all(one <= self.last for one in self.stream.live_of(self.wanted))

    # Making

    def _make(self) -> None:
        if self._is_over:
            return
        stream = self.stream
        if stream.losses != self._losses:
            self._losses, self.last = stream.losses, -1
        self._makings += 1
        self._around.count("ordered readers made")
        making = self._making = _Making(
            f"{self.name}m{self._makings}",
            self._client.inbox(),
            self.last,
            stream.changes,
            known=frozenset(stream.live_of(self.wanted)),
            deleted=frozenset(stream.deleted),
            heard_us=self._now_us,
        )
        config: dict[str, Any] = {"ack_policy": "none", "inactive_threshold": 20_000_000_000, "mem_storage": True}
        config |= {"name": making.name, "num_replicas": 1, "max_deliver": 1}
        config |= {"filter_subject": self.wanted.decode()} if self.wanted else {}
        if self.last < 0 and self._random.random() < _WITH_LASTS:
            config |= {"deliver_policy": "last_per_subject"} | ({} if self.wanted else {"filter_subject": ">"})
            making.begins_with_lasts = True
        if self.last >= 0:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.last + 2}
        if self._is_push:
            config |= {"deliver_subject": making.inbox.decode(), "idle_heartbeat": 500_000_000, "flow_control": True}
            self._client.subscribe(making.inbox, lambda message: self._received(making, message))

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            self._trace(f"created {making.name}: {fields.get('error') or fields.get('num_pending')}")
            if making is not self._making or making.deleted_us is not None:
                return
            if "error" in fields or not fields:
                self._make_later(making)
                return
            making.is_made, making.heard_us, making.made_us = True, self._now_us, self._now_us
            if making.next_seq == 1:  # else its first messages have come earlier than the answer
                self._check_pending(making, fields["num_pending"], making.began_at)
            if not self._is_push:
                self._pull(making)

        where = f"CONSUMER.CREATE.{stream.name}.{making.name}"
        if making.begins_with_lasts and not self.wanted:
            where += ".>"
        elif self.wanted:
            where += f".{self.wanted.decode()}"
        self._client.ask(where, {"stream_name": stream.name, "config": config}, done)

    def _leave(self) -> None:
        if (making := self._making) is not None:
            self._client.unsubscribe(making.inbox)
            self._client.unsubscribe(self._pull_inbox)
            self._making = None

    def _make_later(self, making: _Making) -> None:
        if making is self._making:
            self._leave()
            self._around.scheduler.after(_AGAIN_US, self._make)

    def _watch(self) -> None:
        """Look for heartbeats."""
        making = self._making
        if making is not None and making.is_made and self._now_us > making.heard_us + _BEAT_US:
            self._trace("no heartbeat")
            self._around.count("missing heartbeats")
            self._make_later(making)
        if not self._is_over:
            self._around.scheduler.after(_BEAT_US // 3, self._watch)

    # Pull requests

    def _pull(self, making: _Making) -> None:
        self._client.unsubscribe(self._pull_inbox)
        inbox = self._pull_inbox = self._client.inbox()
        self._pull_left = _PULL_BATCH
        no_wait = self._random.random() < 0.2
        request: dict[str, Any] = {"batch": _PULL_BATCH, "expires": _EXPIRES_US * 1_000, "idle_heartbeat": 500_000_000}
        if no_wait:
            request = {"batch": _PULL_BATCH, "no_wait": True}
        self._client.subscribe(inbox, lambda message: self._pulled(making, inbox, message))
        where = f"CONSUMER.MSG.NEXT.{self.stream.name}.{making.name}".encode()
        self._client.send(API + where, inbox, json.dumps(request).encode())

    def _pulled(self, making: _Making, inbox: bytes, message: PublishedMessage) -> None:
        if inbox != self._pull_inbox or making is not self._making:
            return
        status = status_of(message)
        if status and not status.startswith("100"):
            self._around.count(f"status {status[:3]}")
            if making.deleted_us is None and status[:3] in ("404", "408"):
                making.heard_us = self._now_us
                self._around.scheduler.after(20_000, lambda: self._pull(making) if making is self._making else None)
            else:
                self._make_later(making)
            return
        if not status:
            self._pull_left -= 1
            if self._pull_left < 0:
                raise ViolationError(f"{making.name}: more than {_PULL_BATCH} messages for one request")
        self._received(making, message)
        if not self._pull_left and making is self._making:
            self._pull_on(making)

    def _pull_on(self, making: _Making) -> None:
        """Ask for more, perhaps in a moment."""
        if self._random.random() >= _SLOW:
            self._pull(making)
            return
        wait_us = int(self._random.random() * _SLOW_US)
        self._around.scheduler.after(wait_us, lambda: self._pull(making) if making is self._making else None)

    # Messages

    def _received(self, making: _Making, message: PublishedMessage) -> None:
        if making.deleted_us is not None:
            self._check_deleted(making, message)
            return
        if making is not self._making:
            return
        making.heard_us = self._now_us
        if status := status_of(message):
            self._status(making, message, status)
            return
        found = _ACK.fullmatch(message.reply)
        if found is None:
            raise ViolationError(f"{making.name}: no reply subject of a reader: {message.reply!r}")
        stream, name = found[1].decode(), found[2].decode()
        if (stream, name) != (self.stream.name, making.name):
            raise ViolationError(f"{making.name}: delivered for {stream} {name}")
        offset, number, pending = int(found[3]) - 1, int(found[4]), int(found[6])
        if number != making.next_seq:
            self._trace(f"a gap: {number} instead of {making.next_seq}")
            self._around.count("gaps of consumers")
            self._make_later(making)
            return
        making.next_seq += 1
        self._check(making, offset, message)
        self.last = max(self.last, offset)
        self._check_pending(making, pending, offset, message.decided_us)
        self._around.count("messages of ordered readers")

    def _status(self, making: _Making, message: PublishedMessage, status: str) -> None:
        if not status.startswith("100"):
            self._around.count(f"status {status[:3]}")
            self._make_later(making)
        elif message.reply:
            self._client.send(message.reply, b"")
        elif (told := field_of(message, "Nats-Last-Consumer")) and int(told) != making.next_seq - 1:
            self._trace(f"a gap: heartbeat behind {told} instead of {making.next_seq - 1}")
            self._around.count("gaps of consumers")
            self._make_later(making)

    def _check(self, making: _Making, offset: int, message: PublishedMessage) -> None:
        stream = self.stream
        stream.reads(offset, message.subject, message.value, making.name)
        if not stream.matches(message.subject, self.wanted):
            raise ViolationError(f"{making.name}: {message.subject!r} does not match {self.wanted!r}")
        if stream.is_excused or stream.losses != self._losses:
            return
        if offset <= self.last:
            raise ViolationError(f"{making.name}: sequence {offset + 1} after {self.last + 1}")
        between = [one for one in stream.live_of(self.wanted) if self.last < one < offset]
        skipped = [one for one in between if self._must_come(making, one)]
        if skipped:
            raise ViolationError(f"{making.name}: got offset {offset} after {self.last}, without {skipped}")
        if offset in making.deleted:
            raise ViolationError(f"{making.name}: got offset {offset}, which was deleted before it was made")

    def _must_come(self, making: _Making, offset: int) -> bool:
        """True if a live message is delivered: it may be the last one of its subject, or came later than the reader."""
        return not making.begins_with_lasts or not self.stream.is_followed(offset, making.made_us or self._now_us)

    def _check_pending(self, making: _Making, pending: int, offset: int, told_us: int | None = None) -> None:
        """Check `num_pending`, told with the message at `offset`, or when the reader was made behind it (None)."""
        stream = self.stream
        if stream.is_excused or stream.losses != self._losses:
            return
        least = sum(one > offset and stream.is_live(one) and self._must_come(making, one) for one in making.known)
        before = () if told_us is None else (one for one, at_us in stream.deleted.items() if at_us < told_us)
        most = stream.sent_count(self.wanted, offset, making.deleted.union(before))
        if not least <= pending <= most:
            where = f"{making.name}: num_pending is {pending} at offset {offset}"
            text = f"{least} were known when it was made, and {most} were sent and not deleted before"
            raise ViolationError(f"{where}; {text}")
        is_quiet = making.pending is not None and making.pending_changes == stream.changes
        if is_quiet and making.pending is not None:
            self._around.count("counts in quiet times")
            if pending != making.pending - (told_us is not None):
                text = f"{making.name}: num_pending was {making.pending}, and is {pending} at offset {offset}"
                raise ViolationError(text)
        making.pending = pending if stream.is_quiet(self._now_us) else None
        making.pending_changes = stream.changes

    # Deletion

    def delete(self, *, rewinds: bool) -> None:
        """Delete the consumer, and make another one, perhaps at the beginning; its inbox is listened to for a while."""
        making = self._making
        if making is None or not making.is_made:
            return

        def done(answer: PublishedMessage | None) -> None:
            if not fields_of(answer).get("success") or making is not self._making:
                return
            making.deleted_us = self._now_us
            self._around.count("deleted readers")
            self._making = None
            self.last = -1 if rewinds else self.last
            inboxes = making.inbox, self._pull_inbox
            self._pull_inbox = b""

            def leave() -> None:
                for inbox in inboxes:
                    self._client.unsubscribe(inbox)

            if not self._is_push:  # what it asked for must not be answered either
                self._client.unsubscribe(inboxes[1])
                self._client.subscribe(inboxes[1], lambda message: self._check_deleted(making, message))
            self._around.scheduler.after(_AFTERWARDS_US, leave)
            self._around.scheduler.after(_AGAIN_US, self._make)

        self._client.ask(f"CONSUMER.DELETE.{self.stream.name}.{making.name}", None, done)

    def _check_deleted(self, making: _Making, message: PublishedMessage) -> None:
        sent_us = self.stream.sent_us.get(message.value)
        if not status_of(message) and sent_us is not None and making.deleted_us is not None:
            if sent_us > making.deleted_us:
                text = f"{message.value[:40]!r} was sent at {sent_us} us, and the reader was deleted before"
                raise ViolationError(f"{making.name}: {text}, at {making.deleted_us} us")
            self._around.count("messages behind a deletion")
