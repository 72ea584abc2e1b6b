"""What a publisher hears: JetStream's PubAck and error bodies, as ready-made NATS `PUB` commands.

Whoever published in an envelope hears Liftbridge's ack: see `hot.envelope_acks`.

An unmodified JetStream client takes them: it wants a non-empty `stream` and a `seq` that begins at 1, so `seq` is the
offset + 1; it drops the fields that it does not know. Ours say what was got:

    {"stream":"orders","seq":43,"partition":0,"offset":42,"epoch":1,"replicas":1,"fsynced":true}
    {"error":{"code":400,"err_code":10054,"description":"…"},"stream":"orders","seq":0}

The codes are those of nats-server's `errors.json`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec

from penstock.base.errors import ErrorCode
from penstock.hot import envelope_acks
from penstock.hot.acks import pubacks, pubacks_again
from penstock.hot.refusals import answers_alike

__all__ = [
    "DOUBT",
    "NUMBER",
    "AckError",
    "ack_tails",
    "bad_request",
    "elsewhere_body",
    "envelope_refusals",
    "envelope_tails",
    "error_ack",
    "error_acks",
    "error_body",
    "headers_too_large",
    "insufficient_resources",
    "invalid_ttl",
    "key_elsewhere",
    "key_moving",
    "message_too_large",
    "not_taken",
    "numbered_body",
    "outcome_unknown",
    "pubacks",
    "pubacks_again",
    "rollup_failed",
    "store_failed",
    "ttl_disabled",
    "unavailable",
    "wrong_last_msg_id",
    "wrong_last_sequence",
]


DOUBT = "the message may or may not be stored"
NUMBER = "\0"
"""Stands in a description where the number of each message goes."""
_NUMBER_JSON = b"\\u0000"
_TAILS_MAX = 64  # few differ: by how often streams have had leaders


class AckError(NamedTuple):
    """One error that a publisher can get: HTTP-like class, JetStream's own code, and what to do about it."""

    code: int
    err_code: int
    description: str
    reason: str = ""  # an ErrorCode, where `err_code` alone does not tell


def bad_request(description: str) -> AckError:
    """The publisher asks for something that cannot be."""
    return AckError(400, 10003, description)


def wrong_last_sequence(last: int | str) -> AckError:
    """Another sequence is expected than that of the last message stored, of all or of one subject."""
    return AckError(400, 10071, f"wrong last sequence: {last}")


def wrong_last_msg_id() -> AckError:
    """Nats-Expected-Last-Msg-Id names another id than the last message has."""
    return AckError(400, 10070, "wrong last msg ID: the last message has another one, or none")


def invalid_ttl() -> AckError:
    """Its time to live cannot be read, or is below a second."""
    return AckError(400, 10165, "invalid per-message TTL")


def ttl_disabled() -> AckError:
    """It has a time to live, and the stream allows none."""
    return AckError(400, 10166, "per-message TTL is disabled")


def rollup_failed(description: str) -> AckError:
    """Others are to go for it, and cannot."""
    return AckError(500, 10111, description)


def message_too_large(size: int | str, limit: int) -> AckError:
    """Over the stream's max_message_bytes."""
    return AckError(400, 10054, f"message size exceeds maximum allowed: {size} bytes, the stream takes {limit}")


def headers_too_large(size: int | str, limit: int) -> AckError:
    """Over the limit of a header block."""
    return AckError(400, 10097, f"header size exceeds maximum allowed of 64k: {size} bytes, the limit is {limit}")


def not_taken(stream: str, intake: str) -> AckError:
    """Somebody has said that the stream is to take no messages; JetStream has this error for a sealed one."""
    text = f"stream {stream!r} takes no messages: it is {intake} until it is resumed"
    if intake == "sealed":
        text = "invalid operation on sealed stream"
    return AckError(400, 10109, text, ErrorCode.READ_ONLY)


def key_elsewhere(partition: int, subject: str) -> AckError:
    """The stream has got more partitions, and the key has its place in another one."""
    text = f"the key belongs to partition {partition}, which listens on {subject!r}: the stream got more partitions"
    return AckError(400, 10003, text, ErrorCode.KEY_ELSEWHERE)


def key_moving() -> AckError:
    """The key goes to a partition that was added."""
    text = "temporarily unavailable: the key moves to a partition that was added; send it again in a moment"
    return AckError(503, 10008, text, ErrorCode.KEY_MOVING)


def store_failed(reason: str) -> AckError:
    """The disk refused; what was stored before is safe."""
    return AckError(503, 10077, f"store failed: {reason}")


def outcome_unknown(reason: str) -> AckError:
    """The disk failed once it was written: it may be there after a restart; a no would have it stored twice."""
    return AckError(503, 10077, f"store failed: {reason}; {DOUBT}", ErrorCode.OUTCOME_UNKNOWN)


def unavailable(reason: str) -> AckError:
    """Over budget, or not able to promise durability now; try again later."""
    return AckError(503, 10008, f"temporarily unavailable: {reason}")


def insufficient_resources(reason: str) -> AckError:
    """It would take more memory than there is for it."""
    return AckError(503, 10023, f"insufficient resources: {reason}")


def not_enough_replicas(in_sync: int, min_isr: int) -> AckError:
    """Fewer than `min_isr` are in sync: nothing could be acked."""
    replicas = "1 replica is" if in_sync == 1 else f"{in_sync} replicas are"
    text = f"temporarily unavailable: {replicas} in sync; {min_isr} must be"
    return AckError(503, 10008, text, ErrorCode.NOT_ENOUGH_REPLICAS)


@lru_cache(maxsize=_TAILS_MAX)
def ack_tails(partition: int, leader_epoch: int, replicas: int) -> tuple[bytes, bytes]:
    """The ends of a PubAck's body: what a message got that is not synced, and one that is."""
    got = b',"partition":%d,"epoch":%d,"replicas":%d,"fsynced":' % (partition, leader_epoch, replicas)
    return got + b"false}", got + b"true}"


def error_body(stream: bytes, error: AckError) -> bytes:
    """What the publisher of a refused message gets."""
    told = {"code": error.code, "err_code": error.err_code, "description": error.description}
    reason = {"reason": error.reason} if error.reason else {}
    return msgspec.json.encode({"error": told, "stream": stream.decode(), "seq": 0, **reason})


def numbered_body(stream: bytes, error: AckError) -> bytes:
    """The same for messages that differ in the number that stands for NUMBER; see hot.refusals."""
    return error_body(stream, error).replace(_NUMBER_JSON, b"\0")


def elsewhere_body(stream: bytes, partition: bytes) -> bytes:
    """The PubAck of what another partition of the stream has; NUL where the sequence of each goes."""
    return b'{"stream":"%b","seq":\0,"duplicate":true,"partition":%b}' % (stream, partition)


def error_acks(stream: bytes, replies: bytes, error: AckError) -> bytes:
    """`PUB` commands that refuse the messages of all who wait; for `replies` see hot.acks."""
    return answers_alike(replies, error_body(stream, error))


@lru_cache(maxsize=_TAILS_MAX)
def envelope_tails(partition: int, leader_epoch: int, replicas: int) -> tuple[bytes, bytes]:
    """What `ack_tails` gives, for acks of envelopes."""
    return (
        envelope_acks.standing_tail(partition, leader_epoch, replicas, False),
        envelope_acks.standing_tail(partition, leader_epoch, replicas, True),
    )


def envelope_refusals(stream: bytes, ack_head: bytes, records: bytes, error: AckError) -> bytes:
    """`PUB` commands that refuse the messages of all who wait with an envelope; see hot.envelope_acks."""
    tail = envelope_acks.error_tail(envelope_acks.UNKNOWN, error_body(stream, error))
    return envelope_acks.refusals(records, ack_head, tail)


def error_ack(stream: bytes, reply: bytes, error: AckError) -> bytes:
    """The `PUB` command that refuses one message."""
    return error_acks(stream, reply + b" ", error)
