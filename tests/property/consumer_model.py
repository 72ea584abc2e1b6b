"""A consumer with acks as plain Python: what `ConsumerState` must agree with (ADR 107)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from penstock.consumers.config import PARKED_MAX, AckConfig

NEVER = 2**63 - 1


@dataclass
class Message:
    """A pending message. `is_expired`: found due by `expire`, which no row tells but a snapshot."""

    state: str  # hand, waits, ready, parked, ended
    key: str
    count: int = 0
    last: int = 0
    first: int = 0
    due: int = NEVER  # ms of the consumer's clock
    is_expired: bool = False

    def shown(self, max_deliver: int) -> str:
        """Its state with what `expire` found."""
        if not self.is_expired:
            return self.state
        return "ended" if max_deliver and self.count >= max_deliver else "ready"


@dataclass
class Model:
    """All about one consumer; times are ms of its clock."""

    config: AckConfig
    next_offset: int
    delivered: int = 0
    generation: int = 0
    clock: int = 0
    messages: dict[int, Message] = field(default_factory=dict)

    def copy(self) -> Model:
        """What rows tell: not what was only found due."""
        made = copy.deepcopy(self)
        for one in made.messages.values():
            one.is_expired = False
        return made

    def keep_expired(self) -> None:
        """A snapshot tells what was found due."""
        for one in self.messages.values():
            if one.is_expired:
                one.state, one.due, one.is_expired = one.shown(self.config.max_deliver), NEVER, False

    def state(self, offset: int) -> str:
        return self.messages[offset].shown(self.config.max_deliver)

    def wait(self, count: int) -> int:
        waits = self.config.backoff_us or (self.config.ack_wait_us,)
        return -(-waits[min(count, len(waits)) - 1] // 1_000)

    @property
    def ack_pending(self) -> int:
        return sum(one.count > 0 for one in self.messages.values())

    @property
    def parked(self) -> int:
        return sum(one.count == 0 for one in self.messages.values())

    @property
    def is_crowded(self) -> bool:
        """True if as many deliveries wait for an ack as may; those that were the last ones do not count."""
        ended = sum(self.state(offset) == "ended" for offset in self.messages)
        return self.ack_pending - ended >= self.config.max_ack_pending

    def ready(self) -> list[int]:
        return [offset for offset in sorted(self.messages) if self.state(offset) == "ready"]

    def is_full(self) -> bool:
        return self.is_crowded or (self.config.is_ordered and self.parked >= PARKED_MAX)

    def floors(self) -> tuple[int, int]:
        first = min(self.messages, default=self.next_offset)
        least = min((one.first for one in self.messages.values() if one.count), default=self.delivered + 1)
        return first, least - 1

    # Events.

    def tick(self, clock: int) -> None:
        self.clock = max(self.clock, clock)

    def is_busy(self, key: str) -> bool:
        return self.config.is_ordered and any(one.key == key for one in self.messages.values())

    def fill(self, rows: list[tuple[int, str | None]], limit: int, end: int, clock: int) -> list[int]:
        """Deliver up to `limit` of the rows before `end`, by offset and key; None: not wanted. Return their offsets."""
        sent: list[int] = []
        for offset, key in rows:
            if offset < self.next_offset:
                continue
            if key is None:
                self.next_offset = offset + 1
                continue
            if len(sent) == limit or self.is_full():
                return sent
            if self.is_busy(key):
                self.messages[offset] = Message("parked", key)
            else:
                self.tick(clock)
                self.delivered += 1
                due = self.clock + self.wait(1)
                self.messages[offset] = Message("hand", key, 1, self.delivered, self.delivered, due)
                sent.append(offset)
            self.next_offset = offset + 1
        self.next_offset = max(self.next_offset, end)
        return sent

    def fill_again(self, gone: set[int], limit: int, end: int, clock: int) -> list[int]:
        """Deliver up to `limit` of what is ready before `end`; return their offsets."""
        sent: list[int] = []
        position = -1
        while True:
            ready = [offset for offset in self.ready() if position < offset < end]
            if not ready:
                return sent
            position = offset = ready[0]
            if offset in gone:
                self.leave(offset)
                continue
            one = self.messages[offset]
            if not one.count and self.is_crowded:
                continue
            if len(sent) == limit:
                return sent
            self.tick(clock)
            self.delivered += 1
            one.state, one.is_expired, one.count, one.last = "hand", False, one.count + 1, self.delivered
            one.first = one.first or one.last
            one.due = self.clock + self.wait(one.count)
            sent.append(offset)

    def leave(self, offset: int) -> None:
        """A message leaves; the next one of its key is ready."""
        one = self.messages.pop(offset)
        behind = [other for other in sorted(self.messages) if self.messages[other].key == one.key]
        if self.config.is_ordered and behind and one.state != "parked":
            assert self.messages[behind[0]].state == "parked"
            self.messages[behind[0]].state = "ready"

    def judge(self, kind: str, offset: int, sequence: int, generation: int) -> str:
        if generation != self.generation or sequence > self.delivered or offset >= self.next_offset:
            return "forged"
        is_done = kind in ("ack", "term")
        if self.config.acks_all and is_done:
            return "applied" if self.messages and min(self.messages) <= offset else "unknown"
        one = self.messages.get(offset)
        if one is None:
            return "unknown"
        if not one.first <= sequence <= one.last or not one.count:
            return "forged"
        if sequence != one.last and (self.config.is_ordered or not is_done):
            return "late"
        return "late" if self.state(offset) == "ended" and not is_done else "applied"

    def settle(self, kind: str, offset: int, delay_ms: int | None, clock: int) -> None:
        if kind in ("ack", "term"):
            for other in sorted(self.messages) if self.config.acks_all else [offset]:
                if other <= offset:
                    self.leave(other)
            return
        one = self.messages[offset]
        one.is_expired = False
        if kind == "wpi":
            self.tick(clock)
            one.state, one.due = "hand", self.clock + self.wait(one.count)
            return
        delay = self.wait(one.count) if delay_ms is None else delay_ms
        if delay:
            self.tick(clock)
            one.state, one.due = "waits", self.clock + delay
        else:
            self.again_now(one)

    def again_now(self, one: Message) -> None:
        is_last = 0 < self.config.max_deliver <= one.count
        one.state, one.due = ("waits", 0) if is_last else ("ready", NEVER)

    def expire(self, clock: int) -> list[int]:
        ended = []
        for offset, one in sorted(self.messages.items()):
            if one.state in ("hand", "waits") and not one.is_expired and one.due <= clock:
                one.is_expired = True
                if self.state(offset) == "ended":
                    ended.append(offset)
        return ended

    def remove_range(self, begin: int, end: int) -> int:
        gone = [offset for offset in sorted(self.messages) if begin <= offset < end]
        for offset in gone:
            self.leave(offset)
        return len(gone)

    def cut(self, end: int) -> None:
        self.remove_range(end, NEVER)
        self.next_offset = min(self.next_offset, end)

    def reset(self, offset: int) -> None:
        self.messages.clear()
        self.next_offset, self.delivered = offset, 0
        self.generation += 1

    def configure(self, config: AckConfig) -> None:
        self.keep_expired()  # what is ended stays so
        self.config = config
        for one in self.messages.values():
            if one.state == "ready":
                self.again_now(one)
