"""Acks for publishers: JetStream's PubAck and error bodies, as complete NATS `PUB` commands.

A publisher that used an envelope gets Liftbridge's ack: see `hot.envelope_acks`.

An unmodified JetStream client accepts them: it wants a non-empty `stream` and a `seq` that begins at 1, so `seq` is the
offset + 1; it ignores fields it does not know. Our fields describe the durability reached:

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
from penstock.hot.refusals import answers_alike

DOUBT = "the message may or may not be stored"
NUMBER = "\0"
"""Placeholder in a description for each message's number."""
_NUMBER_JSON = b"\\u0000"
_TAILS_MAX = 64  # few differ: one per leader epoch of a partition


class AckError(NamedTuple):
    """An error that a publisher can get: HTTP-like class, JetStream's own code, and the remedy."""

    code: int
    err_code: int
    description: str
    reason: str = ""  # an ErrorCode, if `err_code` is ambiguous


def bad_request(description: str) -> AckError:
    """The request is invalid."""
    return AckError(400, 10003, description)


def mistyped(reason: str) -> AckError:
    """The value does not fit the schema of its subject."""
    text = "the value does not fit its schema" + (f": {reason}" if reason else "")
    return AckError(400, 10003, text, ErrorCode.SCHEMA_MISMATCH)


def wrong_last_sequence(last: int | str) -> AckError:
    """The expected sequence is not the last one of the log or of the subject."""
    return AckError(400, 10071, f"wrong last sequence: {last}")


def sequence_in_batch() -> AckError:
    """A message of an atomic batch expects a sequence that messages before it in the batch have changed."""
    return AckError(400, 10164, "wrong last sequence")


def atomic_disabled() -> AckError:
    """The message is of an atomic batch, and the stream does not allow any."""
    return AckError(400, 10174, "atomic publish is disabled")


def batch_sequence_missing() -> AckError:
    """The message has no place in its atomic batch."""
    return AckError(400, 10175, "atomic publish sequence is missing")


def batch_incomplete() -> AckError:
    """The atomic batch is not known, or lacks a message."""
    return AckError(400, 10176, "atomic publish batch is incomplete")


def batch_header(header: str) -> AckError:
    """A message of an atomic batch has a header that it cannot have."""
    return AckError(400, 10177, f"atomic publish unsupported header used: {header}")


def batch_id_invalid() -> AckError:
    """The id of the atomic batch is too long."""
    return AckError(400, 10179, "atomic publish batch ID is invalid")


def api_level_required() -> AckError:
    """The message requires a higher level of JetStream's API."""
    return AckError(412, 10185, "JetStream minimum api level required")


def batch_too_large(limit: str) -> AckError:
    """The atomic batch has more messages, or bytes, than it may have."""
    return AckError(400, 10199, f"atomic publish batch is too large: {limit}")


def batch_commit_invalid() -> AckError:
    """Nats-Batch-Commit is neither 1 nor eob."""
    return AckError(400, 10200, "atomic publish batch commit is invalid")


def batch_duplicate() -> AckError:
    """A message of an atomic batch has the id of another one, in the batch or stored."""
    return AckError(400, 10201, "atomic publish batch contains duplicate message id")


def too_many_batches() -> AckError:
    """Too many atomic batches are not committed yet, or take too much memory."""
    return AckError(429, 10210, "atomic publish too many inflight")


def counters_disabled() -> AckError:
    """The message increments a counter, which streams do not have here."""
    return AckError(400, 10168, "message counters is disabled")


def increment_invalid() -> AckError:
    """Nats-Incr is no number."""
    return AckError(400, 10171, "message counter increment is invalid")


def fast_disabled() -> AckError:
    """The message is of a fast batch, which streams do not take here."""
    return AckError(400, 10205, "batch publish is disabled")


def wrong_stream() -> AckError:
    """Nats-Expected-Stream names another stream than the only one on the subject."""
    return AckError(400, 10060, "expected stream does not match")


def wrong_last_msg_id() -> AckError:
    """Nats-Expected-Last-Msg-Id differs from the id of the last message."""
    return AckError(400, 10070, "wrong last msg ID: the last message has another one, or none")


def invalid_ttl() -> AckError:
    """Nats-TTL is invalid, or below a second."""
    return AckError(400, 10165, "invalid per-message TTL")


def ttl_disabled() -> AckError:
    """Nats-TTL is set, and the stream does not allow it."""
    return AckError(400, 10166, "per-message TTL is disabled")


def schedules_disabled() -> AckError:
    """The message is a schedule, and the stream does not allow it."""
    return AckError(400, 10188, "message schedules is disabled")


def invalid_schedule(err_code: int, description: str) -> AckError:
    """The message is no schedule that can be taken; see `ingest.schedules`."""
    return AckError(400, err_code, description)


def no_sequence() -> AckError:
    """Another subject is named, and no last sequence of it is expected."""
    return AckError(400, 10193, "missing sequence for expected last sequence per subject")


def rollup_failed(description: str) -> AckError:
    """The rollup is invalid or not allowed."""
    return AckError(500, 10111, description)


def message_too_large(size: int | str, limit: int) -> AckError:
    """The message is larger than the stream's max_message_bytes."""
    return AckError(400, 10054, f"message size exceeds maximum allowed: {size} bytes, the stream takes {limit}")


def headers_too_large(size: int | str, limit: int) -> AckError:
    """The header block is above its limit."""
    return AckError(400, 10097, f"header size exceeds maximum allowed of 64k: {size} bytes, the limit is {limit}")


def not_taken(stream: str, intake: str) -> AckError:
    """The stream is paused or sealed by an operator; JetStream has this error for a sealed stream."""
    text = f"stream {stream!r} takes no messages: it is {intake} until it is resumed"
    if intake == "sealed":
        text = "invalid operation on sealed stream"
    return AckError(400, 10109, text, ErrorCode.READ_ONLY)


def key_elsewhere(partition: int, subject: str) -> AckError:
    """The stream has more partitions now, and another one owns the key."""
    text = f"the key belongs to partition {partition}, which listens on {subject!r}: the stream got more partitions"
    return AckError(400, 10003, text, ErrorCode.KEY_ELSEWHERE)


def key_moving() -> AckError:
    """The key is being migrated to a partition that was added."""
    text = "temporarily unavailable: the key moves to a partition that was added; send it again in a moment"
    return AckError(503, 10008, text, ErrorCode.KEY_MOVING)


def store_failed(reason: str) -> AckError:
    """The write failed; messages stored before are safe."""
    return AckError(503, 10077, f"store failed: {reason}")


PER_SUBJECT = "messages per subject"
"""The limit by subject, as JetStream calls it."""


def full(limit: str) -> AckError:
    """The message would exceed a limit of a stream that discards new ones; the text is JetStream's."""
    return AckError(503, 10077, f"maximum {limit} exceeded", ErrorCode.STREAM_FULL)


def outcome_unknown(reason: str) -> AckError:
    """The disk failed after the write, so a restart may find the message; a plain failure would make it
    stored twice.
    """
    return AckError(503, 10077, f"store failed: {reason}; {DOUBT}", ErrorCode.OUTCOME_UNKNOWN)


def unavailable(reason: str) -> AckError:
    """Over a budget, or unable to promise durability now; the publisher should retry later."""
    return AckError(503, 10008, f"temporarily unavailable: {reason}")


def not_enough_replicas(in_sync: int, min_isr: int) -> AckError:
    """Fewer than `min_isr` replicas are in sync, so nothing can be acked."""
    replicas = "1 replica is" if in_sync == 1 else f"{in_sync} replicas are"
    text = f"temporarily unavailable: {replicas} in sync; {min_isr} must be"
    return AckError(503, 10008, text, ErrorCode.NOT_ENOUGH_REPLICAS)


@lru_cache(maxsize=_TAILS_MAX)
def ack_tails(partition: int, leader_epoch: int, replicas: int, domain: str = "") -> tuple[bytes, bytes]:
    """Return the ends of PubAck bodies, for messages that are not fsynced and for those that are."""
    got = b',"partition":%d,"epoch":%d,"replicas":%d,"fsynced":' % (partition, leader_epoch, replicas)
    end = b',"domain":"%b"}' % domain.encode() if domain else b"}"
    return got + b"false" + end, got + b"true" + end


def batch_tail(tail: bytes, batch_id: bytes, count: int) -> bytes:
    """Return the end of the PubAck of an atomic batch; `tail`: that of any message."""
    told = msgspec.json.encode(batch_id.decode(errors="replace"))
    return b',"batch":%b,"count":%d%b' % (told, count, tail)


def empty_ack(reply: bytes) -> bytes:
    """Return the `PUB` command that tells that a message of an atomic batch was received."""
    return b"PUB %b 0\r\n\r\n" % reply


def error_body(stream: bytes, error: AckError) -> bytes:
    """Return the error body for a refused message."""
    told = {"code": error.code, "err_code": error.err_code, "description": error.description}
    reason = {"reason": error.reason} if error.reason else {}
    return msgspec.json.encode({"error": told, "stream": stream.decode(), "seq": 0, **reason})


def numbered_body(stream: bytes, error: AckError) -> bytes:
    """Return an `error_body` for messages that differ only in the number at NUMBER; see hot.refusals."""
    return error_body(stream, error).replace(_NUMBER_JSON, b"\0")


def elsewhere_body(stream: bytes, partition: bytes) -> bytes:
    """Return the PubAck of a duplicate in another partition; NUL stands for the sequence."""
    return b'{"stream":"%b","seq":\0,"duplicate":true,"partition":%b}' % (stream, partition)


def error_acks(stream: bytes, replies: bytes, error: AckError) -> bytes:
    """Return `PUB` commands that refuse all waiting messages; for `replies` see hot.acks."""
    return answers_alike(replies, error_body(stream, error))


@lru_cache(maxsize=_TAILS_MAX)
def envelope_tails(partition: int, leader_epoch: int, replicas: int) -> tuple[bytes, bytes]:
    """Return `ack_tails` for acks of envelopes."""
    return (
        envelope_acks.standing_tail(partition, leader_epoch, replicas, False),
        envelope_acks.standing_tail(partition, leader_epoch, replicas, True),
    )


def envelope_refusals(stream: bytes, ack_head: bytes, records: bytes, error: AckError) -> bytes:
    """Return `PUB` commands that refuse all waiting envelopes; see hot.envelope_acks."""
    tail = envelope_acks.error_tail(envelope_acks.UNKNOWN, error_body(stream, error))
    return envelope_acks.refusals(records, ack_head, tail)


def error_ack(stream: bytes, reply: bytes, error: AckError) -> bytes:
    """Return the `PUB` command that refuses one message."""
    return error_acks(stream, reply + b" ", error)
