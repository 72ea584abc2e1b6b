"""Model publishers of the partitioned stream (see `split`).

Rules: They know nothing of partitions: the key or the subject of a message decides. Some wait: messages with the same
`by` are sent one after the other, each when the one before is answered or given up. Others do not wait: each message is
sent once, or twice at once with its value as its id.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

from penstock.base.config import StreamConfig
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from penstock.testing.simulation.checks.split import SplitModel
from tests.sim.models.client_state import StreamGeneration
from tests.sim.models.sending import TRIES_MAX, Sender
from tests.sim.plan.plan import PlannedOperation

_STRIDE = 7_919  # distance between the random numbers of successive messages
_KEYLESS = 5  # one message in so many has no key, where keys decide
_KEY = b"Penstock-Key: %b\r\n"
_ENCODED_KEY = b"Penstock-Key-Base64: %b\r\n"
_ID = b"Nats-Msg-Id: %b\r\n"


class Splitting:
    """All publishers of the partitioned stream in one run."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        sender: Sender,
        prefix: Callable[[StreamConfig, int], str] = lambda config, _number: config.subject.removesuffix(".>"),
    ) -> None:
        """`prefix`: returns the beginning of the subject for the message of that number."""
        self._prefix = prefix
        self._around = around
        self._checks = checks
        self._sender = sender
        self._messages = 0
        self._numbers: dict[tuple[str, bytes], int] = {}  # (subject, by) → last number sent
        self._waiting: set[tuple[str, bytes]] = set()

    def publish(self, generation: StreamGeneration, operation: PlannedOperation) -> None:
        """Publish some messages, selected by the operation's random number."""
        for place in range(1 + operation.number % 5):
            chance = operation.number // 5 + place * _STRIDE
            size_bytes = 0 if chance % 7 else 700
            self._publish(generation.config, chance, size_bytes)

    def _publish(self, config: StreamConfig, chance: int, size_bytes: int) -> None:
        split = self._split(config)
        keys = split.keys_of(chance % config.partitions)
        by = keys[chance // 3 % len(keys)]
        if not split.is_by_leaders:
            self.send_once(config, chance % config.partitions, chance, size_bytes)
        elif chance // 24 % 3:
            self._in_turn(config, by, chance // 72, size_bytes)
        else:
            message = self._message(config, by, chance // 72, size_bytes)
            if chance // 72 % 2:
                self._sender.send(self._where(config, message.by), message, 0)
                return
            message = _with_id(message)
            self._sender.send(self._where(config, message.by), message, TRIES_MAX)
            self._sender.send(self._where(config, message.by), message, 1)

    def send_once(self, config: StreamConfig, partition: int, chance: int = 0, size_bytes: int = 0) -> None:
        """Publish one message for that partition, where it can be chosen, without waiting for its ack."""
        message = self.message(config, partition, chance, size_bytes)
        self._sender.send(self._where(config, message.by), message, 0)

    def message(self, config: StreamConfig, partition: int, chance: int, size_bytes: int = 0) -> SentMessage:
        """Make a message for that partition."""
        keys = self._split(config).keys_of(partition)
        return self._message(config, keys[chance % len(keys)], 1, size_bytes)

    def _in_turn(self, config: StreamConfig, by: bytes, chance: int, size_bytes: int) -> None:
        """Send the next message with this `by`, if the previous one is finished."""
        key = (config.subject, by)
        if key in self._waiting:
            self._around.count("messages whose turn had not come")
            return
        self._waiting.add(key)
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        message = self._message(config, by, 1 + chance // 2 * _KEYLESS, size_bytes, number)
        message = _with_id(message) if chance % 2 else message
        self._around.count("messages in turn")
        self._sender.send(
            self._where(config, by), message, TRIES_MAX if chance % 2 else 0, lambda: self._waiting.discard(key)
        )

    def _message(self, config: StreamConfig, by: bytes, chance: int, size_bytes: int, number: int = 0) -> SentMessage:
        """Make a message with this `by`; without a key, where keys decide, the subject is its `by`."""
        self._messages += 1
        prefix = config.subject.removesuffix(".>").encode()
        value = b"%b/%d/" % (prefix, self._messages)
        value = value.ljust(size_bytes, b".")
        prefix = self._prefix(config, self._messages).encode()
        split = self._split(config)
        if split.by_token:  # a key has no effect there
            subject, key = b"%b.%b.x" % (prefix, by), b"k%02d" % (chance % 16) if chance % 2 else None
        elif not split.is_by_leaders or chance % _KEYLESS == 0:
            by = subject = b"%b.%b" % (prefix, by)
            key = None
        else:
            subject, key = b"%b.x" % prefix, by
        message = SentMessage(subject, value, value, _headers(key, chance), key, by, number)
        self._checks.sends(config, message)
        return message

    def _split(self, config: StreamConfig) -> SplitModel:
        split = self._checks.of(config.subject, 0).split
        assert split is not None
        return split

    def _where(self, config: StreamConfig, by: bytes) -> tuple[PartitionHistory, ...]:
        """Return the histories of the partitions where messages with this `by` may be."""
        numbers = sorted(self._split(config).partitions_of(by)) or range(config.partitions)
        return tuple([self._checks.of(config.subject, number) for number in numbers])


def _headers(key: bytes | None, chance: int) -> bytes:
    if key is None:
        return b""
    line = _ENCODED_KEY % b64encode(key) if chance // 2 % 3 == 0 else _KEY % key
    return b"NATS/1.0\r\n%b\r\n" % line


def _with_id(message: SentMessage) -> SentMessage:
    lines = message.headers.removesuffix(b"\r\n") or b"NATS/1.0\r\n"
    return message._replace(headers=b"%b%b\r\n" % (lines, _ID % message.name.rstrip(b".")))
