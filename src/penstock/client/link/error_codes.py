"""Every error code: meaning, whether a refused append was stored, and the client's handling.

Rules: this table is the single source of that information. `attempts` derives its sets of codes from it, and the page
docs/reference/errors.md is generated from it. A code unknown to this client (from a newer broker) goes to the caller.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from penstock.base.errors import ErrorCode as Code


class Stored(Enum):
    """The effect of a refused append, publish or other change: executed or not."""

    NO = "no"
    PERHAPS = "perhaps, at once or later"
    YES = "yes"
    NOT_TOLD = "–"  # only requests that change nothing get such a code


class Handling(Enum):
    """The client's reaction before its caller sees the error."""

    REPEATS = "retries until the time-out"
    REPEATS_IF_HARMLESS = (
        "retries until the time-out if the request is idempotent: all but an append without a producer"
    )
    ASKS_LEADER = "asks for the leader, and retries if another broker leads"
    ASKS_OTHERS = "asks another broker, or another replica, if one can answer"
    WAITS = "waits as long as the broker says, then retries"
    LOGS_IN = "logs in again, once"
    TELLS = "–"


class CodeMeaning(NamedTuple):
    """One row of the page."""

    meaning: str
    stored: Stored
    handling: Handling
    advice: str  # shown if the caller sees the error


_NO, _PERHAPS, _YES, _NONE = Stored
_REPEATS, _IF_HARMLESS, _LEADER, _OTHERS, _WAITS, _LOGS_IN, _TELLS = Handling
_CORRECT = "no: correct the call"
_LATER = "yes, later"
_BROKERS = "used only between brokers"

ERROR_CODES: dict[Code, CodeMeaning] = {
    # The connection
    Code.BAD_FRAME: CodeMeaning(
        "a frame is malformed; the connection is closed", _NO, _TELLS, "no: something else than a broker listens there"
    ),
    Code.DAMAGED_FRAME: CodeMeaning(
        "a frame was damaged on its way; the connection is closed", _PERHAPS, _IF_HARMLESS, _LATER
    ),
    Code.TOO_LARGE: CodeMeaning(
        "a frame, a row or a list is over a limit, which the message names", _NO, _TELLS, _CORRECT
    ),
    Code.BAD_REQUEST: CodeMeaning("a field is wrong; the message names it", _NO, _TELLS, _CORRECT),
    Code.UNSUPPORTED_VERSION: CodeMeaning(
        "the broker, or the feature level of the cluster, is older than this call", _NO, _TELLS, "no: upgrade it"
    ),
    Code.TLS_REQUIRED: CodeMeaning("the connection is plain, and the broker speaks TLS", _NO, _TELLS, "no: give tls="),
    Code.CERTIFICATE_REFUSED: CodeMeaning(
        "the client certificate is missing or not valid here", _NO, _TELLS, "no: give another"
    ),
    Code.CLUSTER_MISMATCH: CodeMeaning("the broker belongs to another cluster", _NO, _OTHERS, "no: connect anew"),
    # Authentication and permissions
    Code.UNAUTHENTICATED: CodeMeaning(
        "the connection has not logged in, or the login is no longer valid", _NO, _LOGS_IN, "no: log in"
    ),
    Code.NOT_AUTHORIZED: CodeMeaning(
        "no rule allows it; `details`: `user`, `operation`", _NO, _TELLS, "no: add a rule"
    ),
    Code.THROTTLED: CodeMeaning(
        "a rate limit is exceeded; `details`: `throttle_ms`", _NO, _WAITS, "yes, after `throttle_ms`"
    ),
    Code.QUOTA_EXCEEDED: CodeMeaning(
        "the user has as many streams as it may; `details`: `user`, `streams`, `streams_max`",
        _NO,
        _TELLS,
        "no: delete one, or raise the limit",
    ),
    Code.USER_NOT_FOUND: CodeMeaning("no user has that name", _NO, _TELLS, _CORRECT),
    Code.USER_EXISTS: CodeMeaning("a user of that name exists", _NO, _TELLS, _CORRECT),
    # Streams
    Code.STREAM_NOT_FOUND: CodeMeaning("no stream has that name, or stores that subject", _NO, _TELLS, _CORRECT),
    Code.SUBJECTS_OVERLAP: CodeMeaning(
        "another stream has overlapping subjects, and the request allows none (`refuse_overlap`)", _NO, _TELLS, _CORRECT
    ),
    Code.STREAM_EXISTS: CodeMeaning(
        "a stream of that name has another subject or config, or the name is that of a partition", _NO, _TELLS, _CORRECT
    ),
    Code.STREAM_CHANGED: CodeMeaning(
        "the stream was deleted, and perhaps recreated", _NO, _LEADER, "no: it is another one"
    ),
    Code.INVALID_CONFIG: CodeMeaning("the config cannot work; the message lists every mistake", _NO, _TELLS, _CORRECT),
    Code.INVALID_SCHEMA: CodeMeaning(
        "a schema has mistakes, or its subjects are not those of the stream, or overlap others", _NO, _TELLS, _CORRECT
    ),
    Code.INCOMPATIBLE_SCHEMA: CodeMeaning(
        "a schema is not compatible with versions before it; `details`: `reasons`", _NO, _TELLS, "no, unless forced"
    ),
    Code.SCHEMA_NOT_FOUND: CodeMeaning("the stream has no such schema", _NO, _TELLS, _CORRECT),
    Code.SCHEMA_MISMATCH: CodeMeaning(
        "a value does not fit the schema of its subject; `details`: `row`, `subject`, `reason`", _NO, _TELLS, _CORRECT
    ),
    Code.READ_ONLY: CodeMeaning(
        "the log is corrupted, or the stream is paused, read-only or sealed", _NO, _TELLS, "once it is not"
    ),
    Code.STREAM_FULL: CodeMeaning(
        "the stream discards new messages, and is at max_messages or max_bytes, or has a message of the subject",
        _NO,
        _TELLS,
        "once it has room",
    ),
    Code.NO_ENCRYPTION_KEY: CodeMeaning(
        "a broker lacks the key of an encrypted stream; `details`: `key_id`", _NO, _OTHERS, "once it has the key"
    ),
    Code.NATS_UNAVAILABLE: CodeMeaning("a broker is not connected to NATS: it cannot subscribe", _NO, _TELLS, _LATER),
    Code.NATS_REFUSED: CodeMeaning(
        "NATS does not let a broker subscribe", _NO, _TELLS, "once its NATS user has the permission"
    ),
    Code.CHANGE_REFUSED: CodeMeaning(
        "the change is not safe, or not safe now; the message says why", _NO, _TELLS, "perhaps later"
    ),
    # Reading
    Code.OFFSET_OUT_OF_RANGE: CodeMeaning(
        "the log does not hold that offset; `details`: `log_start`, `committed_end`", _NO, _LEADER, _CORRECT
    ),
    Code.LOG_TRUNCATED: CodeMeaning(
        "rows already read are no longer in the log: it was truncated, or began anew; `details`: `end_offset`",
        _NO,
        _LEADER,
        "from `end_offset`",
    ),
    Code.MESSAGE_NOT_FOUND: CodeMeaning(
        "no message has that offset, key or subject", _NONE, _TELLS, "once there is one"
    ),
    Code.CORRUPT_RANGE: CodeMeaning(
        "the data stored there by this replica are corrupted; `details`: `repairing`, if a repair is under way, for "
        "which a read waits",
        _NONE,
        _OTHERS,
        "once it is repaired",
    ),
    Code.TOO_STALE: CodeMeaning("this replica may lack more than the reader allows", _NONE, _OTHERS, _LATER),
    # Appending
    Code.CORRUPT_BATCH: CodeMeaning("the rows fail a check", _NO, _TELLS, _CORRECT),
    Code.KEY_ELSEWHERE: CodeMeaning("another partition has that key; `details`: `partition`", _NO, _TELLS, "there"),
    Code.KEY_MOVING: CodeMeaning(
        "the key moves to an added partition, which begins in a moment", _NO, _REPEATS, _LATER
    ),
    Code.NOT_ENOUGH_REPLICAS: CodeMeaning(
        "too few replicas are in sync, or too few brokers are live", _NO, _TELLS, _LATER
    ),
    Code.OVERLOADED: CodeMeaning("a limit of the broker is exceeded now", _NO, _OTHERS, _LATER),
    Code.STORAGE_FAILED: CodeMeaning(
        "a disk of the broker failed, is full, or gives no more descriptors",
        _NO,
        _OTHERS,
        "yes, if `details` do not have `outcome_unknown` as `reason`: then an append may be stored",
    ),
    Code.OUTCOME_UNKNOWN: CodeMeaning(
        "the `reason` in the `details` of another code", _PERHAPS, _TELLS, "as that code says"
    ),
    Code.PRODUCER_FENCED: CodeMeaning("a producer with that id has a higher epoch", _NO, _TELLS, "no: stop"),
    Code.OUT_OF_SEQUENCE: CodeMeaning(
        "a batch of that producer is missing before this one", _NO, _TELLS, "no: begin anew"
    ),
    Code.ALREADY_APPENDED: CodeMeaning(
        "that batch is stored, so long ago that its offsets are not known", _YES, _TELLS, "no"
    ),
    Code.UNKNOWN_PRODUCER: CodeMeaning(
        "that producer has appended nothing for ten minutes", _NO, _TELLS, "in a higher epoch"
    ),
    Code.RUN_UNFINISHED: CodeMeaning(
        "an earlier batch of the query is only partly published", _NO, _TELLS, "once it is"
    ),
    Code.STAGED_LOST: CodeMeaning("the staged rows no longer exist", _NO, _TELLS, "stage it again"),
    # Groups
    Code.UNKNOWN_MEMBER: CodeMeaning("the group has no such member any more", _NO, _TELLS, "no: join again"),
    Code.FENCED_GENERATION: CodeMeaning(
        "another member of the group may own the partition now", _NO, _TELLS, "no: join again"
    ),
    Code.GROUP_IN_USE: CodeMeaning(
        "the group has members: only they may commit; `details`: `members`", _NO, _TELLS, "once it has none"
    ),
    # Consumers of JetStream's API
    Code.CONSUMER_NOT_FOUND: CodeMeaning("the partition has no consumer of that name", _NO, _TELLS, _CORRECT),
    Code.CONSUMER_EXISTS: CodeMeaning(
        "a consumer of that name exists, with another config", _NO, _TELLS, "no: delete it, or take another name"
    ),
    Code.JETSTREAM_OFF: CodeMeaning(
        "the broker does not answer JetStream's API (`jetstream_api = off`), so it has no consumers",
        _NO,
        _TELLS,
        "once it does",
    ),
    # Leadership and availability
    Code.NOT_LEADER: CodeMeaning(
        "another broker leads; `details`: `leader`, `address`, `leader_epoch`, where it is known. Of a publish: no "
        "broker is subscribed for the stream now; the client tries a publish twice again, within half a second, and "
        "until the time-out only if `retries` is given",
        _NO,
        _REPEATS,
        _LATER,
    ),
    Code.NOT_YET: CodeMeaning("the broker, or this replica, is not ready for the request yet", _NO, _REPEATS, _LATER),
    Code.STOPPING: CodeMeaning("the broker is being stopped", _NO, _REPEATS, _LATER),
    Code.FENCED_EPOCH: CodeMeaning(
        "the leader lost its leadership meanwhile: another broker leads", _PERHAPS, _IF_HARMLESS, "as after `timed_out`"
    ),
    Code.UNKNOWN_EPOCH: CodeMeaning("the broker does not know that leader epoch yet", _PERHAPS, _IF_HARMLESS, _LATER),
    Code.TIMED_OUT: CodeMeaning(
        "the time-out passed",
        _PERHAPS,
        _IF_HARMLESS,
        "a read, yes. An append may still be stored, behind newer ones: read first whether it is stored, or use a "
        "producer, whose appends can be repeated",
    ),
    Code.BROKER_UNAVAILABLE: CodeMeaning("a broker that is needed is not available", _PERHAPS, _IF_HARMLESS, _LATER),
    Code.NOT_METADATA_LEADER: CodeMeaning(
        "no metadata leader is known, or another one leads", _PERHAPS, _IF_HARMLESS, _LATER
    ),
    Code.INTERNAL: CodeMeaning("an internal error (bug) of the broker; see its log", _PERHAPS, _OTHERS, "report it"),
    Code.STALE_INCARNATION: CodeMeaning(_BROKERS, _NONE, _TELLS, "–"),
    Code.UNKNOWN_SESSION: CodeMeaning(_BROKERS, _NONE, _TELLS, "–"),
    Code.VERSION_CONFLICT: CodeMeaning("it has changed meanwhile", _NO, _TELLS, "yes, with its present state"),
}


def codes(*handlings: Handling) -> frozenset[Code]:
    """Return the codes with one of these handlings."""
    return frozenset(code for code, told in ERROR_CODES.items() if told.handling in handlings)


DID_NOTHING = codes(Handling.REPEATS)
AGAIN = codes(Handling.REPEATS, Handling.REPEATS_IF_HARMLESS)
IF_LEADER = codes(Handling.ASKS_LEADER)
OF_ONE_BROKER = codes(Handling.ASKS_OTHERS)
"""Errors that concern one broker only: another one may be able to answer."""
IN_DOUBT = frozenset(code for code, told in ERROR_CODES.items() if told.stored is Stored.PERHAPS)
"""After these errors the request may still be executed, now or later."""
