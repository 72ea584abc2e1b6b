"""What nats-server says, made: messages with and without headers, INFO, errors, and all that is nearly that."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

_NAMES = (
    "Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Subject-Sequence-Subject",
    "Nats-Expected-Last-Msg-Id", "Nats-TTL", "Nats-Rollup", "Penstock-Key", "Penstock-Key-Base64", "Penstock-Ack",
    "Penstock-Tombstone", "Penstock-Later", "Nats-Later", "A", "", "a b", "nats-msg-id",
)  # fmt: skip
_VALUES = (
    "1", "0", "orders", "41", "18446744073709551616", "-1", "none", "leader", "all", "sub", "1h30m", "never", "AP8=",
    "AP8", "====", "k", "", " k ", "é", "x" * 300, "9" * 40, "1 2", "x",
)  # fmt: skip
_SUBJECTS = (b"a.b", b"orders.x", b"a", "größe.→".encode(), b"$JS.API.x", b"_INBOX.x.1", b"x" * 200, b"a..b", b"a.*")
_SUBJECTS_ODD = (
    b"a\rb", b"\r", b"a\nb", b"a\r\nPING\r\n", b"1\r\nMSG", b"a\tb", b"\0", b"$SYS.ACCOUNT.my account.CONNECT", b"",
    b"x" * 70_000, b"a" * 4_089,
)  # fmt: skip
_SIZES_ODD = (b"0", b"000000005", b"5", b"", b"-1", b"+5", b"5 ", b"0000000000000000005", b"999999999")
_REPLIES = (b"", b" ", b"_INBOX.r.7 ", b"r ", b"$JS.ACK.x ", b"$JS.FC.x ", b"a.* ", "é ".encode())
_ERRORS = (
    b"'Unknown Protocol Operation'", b"'Authorization Violation'", b"'Stale Connection'", b"'Slow Consumer'",
    b"'Permissions Violation for Subscription to \"orders.>\"'", b"'Permissions Violation for Publish to \"a\\\"b\"'",
    b"'maximum subscriptions exceeded'", b"'Invalid Subject'", b"'" + b'"' * 500 + b"'", b"", b"'Server Shutdown'",
    b"'permissions violation for subscription to \"a.b\" using queue \"q\"'",
)  # fmt: skip


_INFO_NAMES = (
    "headers", "max_payload", "tls_required", "tls_available", "nonce", "ldm", "version", "connect_urls", "x", "export",
)  # fmt: skip
_INFO_VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 2**63, 2**64, 1.5, "", "n" * 40, [], {}, "\ud7ff", ["a:1"], ["a:1", 7, "x" * 999],
    {"allow": ["_INBOX.>", "a.*"]}, {"allow": ["a.b"], "deny": ["a.>"]}, {"deny": 7},
)  # fmt: skip


def made_block(chance: Random) -> bytes:
    """A block of headers."""
    pick = chance.choice
    odd = (b"NATS/1.0 503 x\r\n", b"NATS/1.0 100 x\r\n", b"NATS/2.0\r\n", b"\r\n", b"")
    first = b"NATS/1.0\r\n" if chance.random() < 0.95 else pick(odd)
    lines = b"".join(
        f"{pick(_NAMES)}{':' if chance.random() < 0.97 else ''}{pick(('', ' ', '  '))}{pick(_VALUES)}".encode()
        + (b"\r\n" if chance.random() < 0.97 else pick((b"\n", b"\r", b"")))
        for _ in range(int(chance.random() * 5))
    )
    return first + lines + (b"\r\n" if chance.random() < 0.95 else b"")


def made_message(chance: Random, value_of: Callable[[Random], bytes] | None = None) -> bytes:
    """MSG or HMSG; one in thirty has another length than it says."""
    pick = chance.choice
    value = value_of(chance) if value_of is not None and chance.random() < 0.4 else b"v" * int(chance.random() * 30)
    block = made_block(chance) if chance.random() < 0.6 else b""
    sizes = [len(block), len(block) + len(value)]
    if chance.random() < 0.03:
        sizes[int(chance.random() * 2)] = pick((0, 1, 65_536, 70_000_000, 2**31, 10**18, 10**30))
    subject, reply = pick(_SUBJECTS), pick(_REPLIES)
    if (odd := chance.random()) < 0.06:
        subject = pick(_SUBJECTS_ODD)
    elif odd < 0.12:
        reply = pick(_SUBJECTS_ODD) + b" "
    head = b"%b %b %d %b" % (b"HMSG" if block else b"MSG", subject, pick((1, 1, 1, 2, 3)), reply)
    length = b"%d %d" % tuple(sizes) if block else b"%d" % sizes[1]
    if 0.12 <= odd < 0.14:
        length = pick(_SIZES_ODD)
    elif odd < 0.2:
        length = length.rjust(9, b"0")
    return b"%b%b\r\n%b%b\r\n" % (head, length, block, value)


def made_info(chance: Random) -> bytes:
    """An INFO line."""
    said: dict[str, object] = {"server_name": "n", "version": "2.10.0", "headers": True, "max_payload": 1_048_576}
    for _ in range(int(chance.random() * 3)):
        name = chance.choice(
            (
                "headers",
                "max_payload",
                "tls_required",
                "tls_available",
                "nonce",
                "ldm",
                "version",
                "connect_urls",
                "x",
                "export",
            )
        )
        said[name] = chance.choice(_INFO_VALUES)
    text = json.dumps(said).encode()
    kind = chance.random()
    if kind < 0.05:
        text = text[: int(chance.random() * len(text))]
    elif kind < 0.06:
        text = b'{"x":' + b"[" * 1_500 + b"]" * 1_500 + b"}"
    return b"INFO " + text + chance.choice((b"\r\n", b" \r\n"))


def made_leaf_frame(chance: Random) -> bytes:
    """What nats-server writes to a leaf node (ADR 53), and to no client: messages and interest."""
    pick = chance.choice
    subject, queues = pick(_SUBJECTS), b" ".join([b"q"] * int(chance.random() * 3))
    if chance.random() < 0.3:
        weight = b" q %d" % int(chance.random() * 20) if queues else b""
        return pick((b"LS+ %b%b\r\n" % (subject, weight), b"LS- %b%b\r\n" % (subject, weight[:2])))
    block, value = made_block(chance) if chance.random() < 0.5 else b"", b"v" * int(chance.random() * 30)
    reply = pick(_REPLIES).lstrip()
    middle = (b"+ %b%b " % (reply, queues) if reply else b"| %b " % queues) if queues else reply
    sizes = b"%d %d" % (len(block), len(block) + len(value)) if block else b"%d" % len(value)
    return b"%b %b %b%b\r\n%b%b\r\n" % (b"HMSG" if block else b"LMSG", subject, middle, sizes, block, value)


def made_line(chance: Random) -> bytes:
    """What is no message."""
    kind = int(chance.random() * 9)
    if kind == 8:
        return made_leaf_frame(chance) if chance.random() < 0.3 else b"PONG\r\n"
    if kind < 2:
        return b"PING\r\n"
    if kind < 4:
        return b"PONG\r\n"
    if kind == 4:
        return b"+OK\r\n"
    if kind == 5:
        return made_info(chance)
    if kind == 6:
        return b"-ERR %b\r\n" % chance.choice(_ERRORS)
    return chance.choice(
        (b"ping\r\n", b"PONG \r\n", b"MSG\r\n", b"HMSG a 1 2\r\n", b"x" * 5_000, b"\0\r\n", b"INFO\r\n")
    )


def made_protocol(chance: Random, value_of: Callable[[Random], bytes] | None = None) -> bytes:
    """Some lines and messages."""
    return b"".join(
        made_message(chance, value_of) if chance.random() < 0.8 else made_line(chance)
        for _ in range(1 + int(chance.random() * 5))
    )
