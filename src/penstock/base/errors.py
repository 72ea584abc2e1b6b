"""Three kinds of failure, and corruption.

| kind                    | type               | who handles it                                   |
|-------------------------|--------------------|--------------------------------------------------|
| programmer error        | `assert`           | nobody: the process stops                        |
| peer's or client's      | `RemoteError`      | sent back with a stable code; the caller mends it |
| environment             | `OperationalError` | where the policy for disk, NATS or peers lives   |
| damaged bytes           | `CorruptionError`  | reported with file and position, never deleted   |
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

NATS_GREETING = f"a frame of {int.from_bytes(b'INFO', 'little')} bytes"
"""What a NATS server says first, taken for the length of a frame, is over the limit: so the refusal begins."""
HTTP_GREETING = f"a frame of {int.from_bytes(b'HTTP', 'little')} bytes"
"""The same of an HTTP server, which answers so to what it does not understand."""


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle` and `copy`: the class with its `args` and attributes. No `__init__` runs a second time."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[PenstockError], args: tuple[Any, ...]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args  # which an OSError leaves to its `__init__`
    return error


class ErrorCode(StrEnum):
    """Stable names of the errors that cross the socket. Never renamed, only added to."""

    BAD_FRAME = "bad_frame"
    DAMAGED_FRAME = "damaged_frame"  # its checksum is wrong: nothing of it was read
    BAD_REQUEST = "bad_request"
    UNSUPPORTED_VERSION = "unsupported_version"
    TOO_LARGE = "too_large"
    TIMED_OUT = "timed_out"
    STOPPING = "stopping"
    INTERNAL = "internal"
    STREAM_NOT_FOUND = "stream_not_found"
    STREAM_EXISTS = "stream_exists"
    STREAM_CHANGED = "stream_changed"  # the id is of a stream that was deleted (and perhaps made again)
    INVALID_CONFIG = "invalid_config"
    OFFSET_OUT_OF_RANGE = "offset_out_of_range"
    LOG_TRUNCATED = "log_truncated"  # what was read is not in the log any more: it was cut, or began anew
    MESSAGE_NOT_FOUND = "message_not_found"
    CORRUPT_BATCH = "corrupt_batch"  # what the client sent fails its checks
    PRODUCER_FENCED = "producer_fenced"  # another producer of this id has begun in a higher epoch
    OUT_OF_SEQUENCE = "out_of_sequence"  # a batch of this producer before it is missing, or it is cut otherwise
    ALREADY_APPENDED = "already_appended"  # longer ago than its offsets are known
    UNKNOWN_PRODUCER = "unknown_producer"  # it has appended nothing for long, or nothing at all
    RUN_UNFINISHED = "run_unfinished"  # an earlier batch of the query is not published to its end
    STAGED_LOST = "staged_lost"  # what was staged is not there (any more): it is to be staged again
    CORRUPT_RANGE = "corrupt_range"  # what is stored there is damaged
    READ_ONLY = "read_only"
    STORAGE_FAILED = "storage_failed"
    OUTCOME_UNKNOWN = "outcome_unknown"  # as the reason of another one: what was sent may or may not be stored
    OVERLOADED = "overloaded"
    NATS_UNAVAILABLE = "nats_unavailable"
    NATS_REFUSED = "nats_refused"
    NOT_LEADER = "not_leader"  # of the partition; `leader`, `address` and `leader_epoch` say who is, where known
    FENCED_EPOCH = "fenced_epoch"  # the leader epoch is over
    UNKNOWN_EPOCH = "unknown_epoch"  # the leader epoch has not been heard of here yet: ask again
    STALE_INCARNATION = "stale_incarnation"  # that run of a broker is over, or was fenced: it registers again
    NOT_METADATA_LEADER = "not_metadata_leader"  # `leader` says which broker is, where known
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    NO_ENCRYPTION_KEY = "no_encryption_key"  # brokers that are to hold it have no keys, or not that of its files
    CLUSTER_MISMATCH = "cluster_mismatch"  # a broker of another cluster, or with another's id
    KEY_ELSEWHERE = "key_elsewhere"  # another partition has the key: the stream got more, or was asked wrongly
    KEY_MOVING = "key_moving"  # to a partition that was added, and begins in a moment: send it again
    NOT_YET = "not_yet"  # ahead of what this replica has: ask again, or another
    TOO_STALE = "too_stale"  # this replica has not heard from its leader lately: ask that one, or another
    UNKNOWN_SESSION = "unknown_session"  # of fetches of a follower: it begins another
    VERSION_CONFLICT = "version_conflict"  # what was to be changed has changed meanwhile
    BROKER_UNAVAILABLE = "broker_unavailable"
    UNKNOWN_MEMBER = "unknown_member"  # of a group: it is gone, or was taken for that
    FENCED_GENERATION = "fenced_generation"  # another member of the group may have it by now
    GROUP_IN_USE = "group_in_use"  # it has members: only they commit
    TLS_REQUIRED = "tls_required"  # the connection is plain, and this broker speaks TLS
    CERTIFICATE_REFUSED = "certificate_refused"  # there is none, or not one for this
    UNAUTHENTICATED = "unauthenticated"  # nobody has proved who asks, or not in a way that still counts
    NOT_AUTHORIZED = "not_authorized"  # who asks may not do that; `operation` and `stream` say what
    THROTTLED = "throttled"  # over a rate; nothing was done: ask again in `throttle_ms`
    QUOTA_EXCEEDED = "quota_exceeded"  # who asks has as many as they may: `user`, `streams` and `streams_max` say so
    USER_NOT_FOUND = "user_not_found"
    USER_EXISTS = "user_exists"
    CHANGE_REFUSED = "change_refused"  # of who is in the cluster: not safe, or not safe now


class RemoteError(PenstockError):
    """A request that the broker (or the client's own checks) refused.

    `code` is stable and safe to branch on, `message` says what to do, `details` are its numbers.
    """

    def __init__(self, code: ErrorCode | str, message: str, **details: Any) -> None:
        super().__init__(message)
        # A newer broker may send a code that this client does not know: it stays a plain string.
        self.code: str = str(code)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class OperationalError(PenstockError):
    """The environment failed: disk, NATS, network. Often worth another try later."""


class ConfigError(PenstockError):
    """Settings that cannot work; `mistakes` lists every one found, each naming its setting."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class CorruptionError(PenstockError):
    """Bytes that fail their check. Nothing is deleted because of it. `advice`: what to do, if that is known there."""

    def __init__(self, file: str, position: int, expected: object, found: object, *, advice: str = "") -> None:
        text = f"{file}: at byte {position}: expected {expected}, found {found}"
        super().__init__(f"{text}. {advice}" if advice else text)
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found
        self.advice = advice

    def advised(self, advice: str) -> CorruptionError:
        """The same, which also says what to do."""
        whole = f"{self.advice} {advice}" if self.advice else advice
        return CorruptionError(self.file, self.position, self.expected, self.found, advice=whole)
