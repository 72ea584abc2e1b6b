"""JetStream's API at a broker without sockets: requests of any NATS client, and what other brokers pass on."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import msgspec

from penstock.base.errors import RemoteError
from penstock.jetstream.gateway import GATEWAY_GROUP
from penstock.node.step import Step
from tests.fuzz.parts import joined, parted
from tests.fuzz.target import Cover, Modules, Target
from tests.groups import group_of
from tests.unit.jetstream.readers.gateways import ReaderBroker, parsed

_STEPS_MAX = 6
_COMMAND = re.compile(rb"(?:PUB (\S+) (\d+)|HPUB (\S+) (?:(\S+) )?(\d+) (\d+))\r\n")
_NOT_IN_SUBJECTS = bytes(range(0x21)) + b"\x7f"  # nats-server delivers no such subject
_SPACES = bytes(0x5F if one in _NOT_IN_SUBJECTS else one for one in range(256))
_REQUEST, _PASSED_ON, _WITHOUT_REPLY, _DESERTED = range(4)
_API = b"$JS.API."


class FuzzedBroker(ReaderBroker):
    """Looks at each command that the gateway publishes: none may have another in it."""

    def __init__(self) -> None:
        self.said = 0  # answers
        super().__init__()

    def do(self, step: Step) -> None:
        for one in step.publish:
            if one.sid == GATEWAY_GROUP:
                self._check_commands(one.commands)
        super().do(step)

    def _published(self, command: bytes) -> None:
        found = _COMMAND.match(command)
        assert found is not None, command
        if found[4] is not None:
            super()._published(command)  # a probe
        while found is not None:  # all answers of one write
            end = found.end() + int(found[2] or found[6])
            inbox, head = (found[1] or found[3]).decode(errors="replace"), found.end() + int(found[5] or 0)
            self.answers[inbox], self.blocks[inbox] = command[head:end], command[found.end() : head]
            found = _COMMAND.match(command, end + 2)

    def _check_commands(self, commands: bytes) -> None:
        position = 0
        while position < len(commands):
            found = _COMMAND.match(commands, position)
            assert found is not None, commands[position : position + 200]
            size = int(found[2] or found[6])
            if found[5] is not None:
                block = commands[found.end() : found.end() + int(found[5])]
                assert block.startswith(b"NATS/1.0"), block
                assert block.endswith(b"\r\n\r\n"), block
            position = found.end() + size + 2
            assert commands[position - 2 : position] == b"\r\n", commands[position - 20 : position]
            self.said += 1


def gateway(modules: Modules, data: bytes) -> object:
    """Every request is answered or dropped, and nothing stays behind; afterwards the broker stores and reads."""
    broker = FuzzedBroker().start()
    broker.create("orders", allow_rollup=True)
    broker.publish("orders.x", b"before", b"more", reply="r")
    broker.consumer("orders", "c")
    broker.consumer("orders", "p", deliver_subject="_INBOX.p", flow_control=True, idle_heartbeat=1_000_000_000)
    broker.tick(1)
    out = []
    for part in parted(data)[:_STEPS_MAX]:
        pieces = [*parted(part), b"", b"", b"", b"", b""]
        kind, subject, reply, headers, payload = pieces[:5]
        before = broker.said
        _do(broker, kind[:1], subject.translate(_SPACES), reply.translate(_SPACES), headers, payload)
        broker.tick(100)
        delivered = len(parsed(b"".join(broker.leaf.frames)))
        broker.leaf.frames.clear()
        out.append(f"{broker.said > before} {delivered > 0} {sum(broker.gateway.errors.values())}")
    for _ in range(6):
        broker.tick(1_000)
    assert not broker.gateway.under_way
    parsed(b"".join(broker.leaf.frames))
    _check(broker)
    return " ".join(out)


def _do(broker: ReaderBroker, kind: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
    match (kind[0] if kind else 0) % 4:
        case _ if not subject:
            return
        case 0:
            broker.deliver([(_API + subject, reply or b"_INBOX.r", headers or None, payload)])
        case 1:
            try:
                broker.gateway.passed_on(payload, broker.clock.now)
            except RemoteError:
                return
        case 2:
            broker.gateway.messages_received(group_of([(subject, None, headers or None, payload)]), broker.clock.now)
        case _:
            broker.leaf.deserted.add(subject)
            broker.gateway.interest_lost([subject], broker.clock.now)
    broker.turn()


def _check(broker: ReaderBroker) -> None:
    """What comes now is stored and found, unless a request has changed that stream."""
    assert not broker.failure, broker.failure
    image = broker.node.image
    if "orders" not in image.names:
        return
    state = image.by_name("orders")
    if state.config.subjects != ("orders.>",) or state.intake != "open" or state.config.max_message_bytes is not None:
        return
    broker.publish("orders.after", b"after", reply="again")
    broker.settle()
    if [one for one in broker.acks if one.reply == "again"]:
        found = broker.call("STREAM.MSG.GET.orders", {"last_by_subj": "orders.after"})
        assert found is not None
        assert "message" in found or state.config != _CONFIG, found


def _config() -> Any:
    broker = ReaderBroker().start()
    broker.create("orders", allow_rollup=True)
    return broker.node.image.by_name("orders").config


_CONFIG = _config()

# Inputs

_INT = (0, 1, 2, 3, -1, 7, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30)
_TEXT = (
    "",
    "orders",
    "orders.>",
    "orders.x",
    ">",
    "*",
    "a b",
    "é",
    "\r\n",
    "$JS.API.x",
    "_INBOX.d",
    "none",
    "all",
    "x" * 300,
)
_TIMES = ("2024-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999+23:59", "now")
_FIELDS: dict[str, tuple[str, ...]] = {
    "STREAM.CREATE": (
        "name", "subjects", "num_replicas", "max_msgs", "max_bytes", "max_age", "discard", "storage", "retention",
        "max_msgs_per_subject", "duplicate_window", "metadata", "allow_direct", "placement", "sealed", "compression",
    ),
    "CONSUMER.CREATE": ("stream_name", "config", "action", "pedantic"),
    "STREAM.MSG.GET": (
        "seq", "last_by_subj", "next_by_subj", "batch", "max_bytes", "start_time", "multi_last", "up_to_seq",
        "up_to_time", "no_hdr",
    ),
    "STREAM.PURGE": ("filter", "seq", "keep"),
    "STREAM.MSG.DELETE": ("seq", "no_erase"),
    "STREAM.INFO": ("deleted_details", "subjects_filter", "offset"),
    "STREAM.NAMES": ("offset", "subject"),
    "CONSUMER.MSG.NEXT": ("batch", "expires", "max_bytes", "no_wait", "idle_heartbeat", "min_pending", "id", "group"),
    "CONSUMER.PAUSE": ("pause_until",),
    "CONSUMER.RESET": ("seq",),
}  # fmt: skip
_SOUND: dict[str, tuple[dict[str, Any], ...]] = {
    "STREAM.MSG.GET": (
        {"seq": 1},
        {"last_by_subj": "orders.x"},
        {"seq": 1, "next_by_subj": "orders.*", "no_hdr": True},
        {"start_time": "2024-01-01T00:00:00.123456789Z"},
        {"seq": 1, "batch": 5},
        {"multi_last": ["orders.>"], "up_to_seq": 2},
        {"multi_last": ["orders.x", "none"], "up_to_time": "2099-01-01T00:00:00+01:00"},
        {"batch": 2, "start_time": "1999-01-01T00:00:00Z", "max_bytes": 10},
    ),
    "STREAM.PURGE": ({"seq": 2}, {"keep": 1}, {"filter": "orders.x"}),
    "STREAM.MSG.DELETE": ({"seq": 1}, {"seq": 2, "no_erase": True}),
    "STREAM.INFO": ({"deleted_details": True, "subjects_filter": ">"},),
    "CONSUMER.MSG.NEXT": (
        {"batch": 2},
        {"batch": 5, "no_wait": True},
        {"batch": 5, "expires": 3_000_000_000, "idle_heartbeat": 500_000_000, "max_bytes": 100},
    ),
    "CONSUMER.PAUSE": ({"pause_until": "2099-01-01T00:00:00Z"},),
    "CONSUMER.RESET": ({"seq": 1}, {}),
}
_CONSUMER = (
    "name", "durable_name", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "filter_subject",
    "filter_subjects", "replay_policy", "rate_limit_bps", "deliver_subject", "idle_heartbeat", "flow_control",
    "headers_only", "max_batch", "max_expires", "max_bytes", "inactive_threshold", "metadata", "pause_until",
    "max_waiting", "priority_groups", "backoff",
)  # fmt: skip
_ALIKE = {"STREAM.UPDATE": "STREAM.CREATE", "DIRECT.GET": "STREAM.MSG.GET", "STREAM.LIST": "STREAM.NAMES"}
_OPERATIONS = (
    *_FIELDS, *_ALIKE, "INFO", "STREAM.DELETE", "CONSUMER.INFO", "CONSUMER.NAMES", "CONSUMER.LIST", "CONSUMER.DELETE",
    "CONSUMER.UNPIN", "STREAM.SNAPSHOT",
)  # fmt: skip
_HEADERS = (
    b"",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nNats-Required-Api-Level: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Required-Api-Level: 99999999999999999999\r\n\r\n",
    b"NATS/1.0\r\nPenstock-Probe: 1\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"\xff\xfe\r\n",
)


def _value(chance: Random, depth: int = 0) -> Any:
    draw = chance.random()
    if depth > 3 or draw < 0.3:
        return chance.choice(_INT)
    if draw < 0.6:
        return chance.choice(_TEXT)
    if draw < 0.7:
        return chance.choice((None, True, False, 1.5, 1e308, *_TIMES))
    if draw < 0.85:
        return [_value(chance, depth + 1) for _ in range(int(chance.random() * 4))]
    return {chance.choice(_TEXT): _value(chance, depth + 1) for _ in range(int(chance.random() * 3))}


def _drawn(chance: Random, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _value(chance) for name in names if chance.random() < 3 / len(names)}


def made_consumer(chance: Random) -> dict[str, Any]:
    config: dict[str, Any] = {"ack_policy": "none"}
    if chance.random() < 0.5:
        config |= {"deliver_subject": chance.choice(("_INBOX.d", "forbidden.d", "orders.y")), "flow_control": True}
        config |= {"idle_heartbeat": 500_000_000}
    if chance.random() < 0.5:
        config["filter_subject"] = chance.choice(("orders.x", "orders.*", ">"))
    policy = chance.choice(("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"))
    config["deliver_policy"] = policy
    config |= {"opt_start_seq": chance.choice((1, 2, 9, 2**63))} if policy == "by_start_sequence" else {}
    config |= {"opt_start_time": chance.choice(_TIMES)} if policy == "by_start_time" else {}
    return config | (_drawn(chance, _CONSUMER) if chance.random() < 0.4 else {})


def _body(chance: Random, operation: str) -> bytes:
    kind = _ALIKE.get(operation, operation)
    draw = chance.random()
    if draw < 0.1 or kind not in _FIELDS:
        return chance.choice((b"", b"{}", b"[]", b"null", b"7", b"-7", b'"x"', b"{", b'{"seq":1,"seq":2}', b"\xff{}"))
    if draw < 0.15:
        depth = 1 + int(chance.random() * 3_000)
        return b'{"config":' + chance.choice((b"[", b'{"a":')) * depth
    body = _drawn(chance, _FIELDS[kind])
    if kind == "CONSUMER.CREATE" and chance.random() < 0.8:
        body = {"stream_name": "orders", "config": made_consumer(chance)}
    elif kind == "STREAM.CREATE" and chance.random() < 0.8:
        body |= {"name": chance.choice(("orders", "new")), "subjects": chance.choice((["new.*"], ["orders.>"]))}
    elif kind in _SOUND and chance.random() < 0.5:
        body = chance.choice(_SOUND[kind])
    text = json.dumps(body).encode()
    return text if chance.random() < 0.9 else text.replace(b"1", b"1" + b"0" * 400, 1)


def _subject(chance: Random, operation: str) -> bytes:
    tokens = [operation]
    if operation not in ("INFO", "STREAM.NAMES", "STREAM.LIST") or chance.random() < 0.1:
        tokens.append(chance.choice((*("orders",) * 12, "new", "", "__offsets", "x" * 300, "a*b")))
    if (operation.startswith(("CONSUMER", "DIRECT")) and chance.random() < 0.8) or chance.random() < 0.1:
        tokens.append(chance.choice(("c", "p", "orders.x", "n.orders.x", "", "*", ">", "é")))
    return ".".join(tokens).encode()


def made_api(chance: Random) -> bytes:
    """One to four requests, sound ones for the most part."""
    parts = []
    for _ in range(1 + int(chance.random() * 4)):
        operation = chance.choice(_OPERATIONS)
        subject, payload = _subject(chance, operation), _body(chance, operation)
        reply = chance.choice((b"_INBOX.a", b"_INBOX.b", b"orders.r", b"forbidden.r", b"$JS.API.INFO", b"\xff"))
        headers = chance.choice(_HEADERS) if chance.random() < 0.3 else b""
        kind = chance.choice((_REQUEST,) * 6 + (_PASSED_ON, _WITHOUT_REPLY, _DESERTED))
        if kind == _PASSED_ON:
            call: list[Any] = [(_API + subject).decode(), reply, headers or None, payload, chance.choice((0, 1, 2, -1))]
            payload = msgspec.msgpack.encode([call[: int(chance.random() * 6)] if chance.random() < 0.2 else call])
        elif kind == _WITHOUT_REPLY:
            subject = chance.choice((b"$JS.FC.orders.p.1", b"$JS.FC.orders.p", subject))
        elif kind == _DESERTED:
            subject = chance.choice((b"_INBOX.p", b"_INBOX.a", b"_INBOX.d"))
        parts.append(joined([bytes((kind,)), subject, reply, headers, payload]))
    return joined(parts)


TARGETS: tuple[Target, ...] = (
    Target(
        "gateway",
        gateway,
        made_api,
        (
            Cover("penstock.jetstream.api_call"),
            Cover("penstock.jetstream.direct_requests"),
            Cover("penstock.jetstream.readers.pulls", ("parsed_pull", "_bounded")),
            Cover("penstock.jetstream.readers.config.parsing", ("parsed_request", "parsed_time_us")),
            Cover("penstock.jetstream.readers.config.reader_config", ("reader_config",)),
            Cover("penstock.jetstream.gateway", ("Gateway.passed_on", "Gateway.messages_received", "Gateway._take")),
        ),
        pieces=(b'"seq":', b'"config":{', b"9223372036854775808", b"[[[[", b"\\u0000", b"$JS.ACK.", b".>"),
        memory_bytes=16 << 20,
        is_slow=True,
    ),
)
