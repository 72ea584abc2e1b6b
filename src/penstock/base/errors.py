"""Three kinds of failure, and corruption.

| kind               | type               | handled by                                        |
|--------------------|--------------------|---------------------------------------------------|
| programmer error   | `assert`           | nothing: the process stops                        |
| peer's or client's | `RemoteError`      | sent back with a stable code; the caller fixes it |
| environment        | `OperationalError` | the owner of the policy for disk, NATS or peers   |
| corrupt bytes      | `CorruptionError`  | reported with file and position, never deleted    |
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

NATS_GREETING = f"a frame of {int.from_bytes(b'INFO', 'little')} bytes"
"""Error text if a NATS server answers: its INFO, read as a frame length, exceeds the limit."""
HTTP_GREETING = f"a frame of {int.from_bytes(b'HTTP', 'little')} bytes"
"""Error text if an HTTP server answers: its HTTP, read as a frame length, exceeds the limit."""


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Support `pickle` and `copy`: the class with its `args` and attributes; `__init__` does not run again."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[PenstockError], args: tuple[Any, ...]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError sets them in its `__init__` only
    return error


class ErrorCode(StrEnum):
    """Stable names of errors sent over the socket. Never renamed, only added to."""

    BAD_FRAME = "bad_frame"
    DAMAGED_FRAME = "damaged_frame"  # wrong checksum: nothing of it was read
    BAD_REQUEST = "bad_request"
    UNSUPPORTED_VERSION = "unsupported_version"
    TOO_LARGE = "too_large"
    TIMED_OUT = "timed_out"
    STOPPING = "stopping"
    INTERNAL = "internal"
    STREAM_NOT_FOUND = "stream_not_found"
    STREAM_EXISTS = "stream_exists"
    SUBJECTS_OVERLAP = "subjects_overlap"  # another stream has them, and the request allows none
    STREAM_CHANGED = "stream_changed"  # the id is that of a deleted (and perhaps recreated) stream
    INVALID_CONFIG = "invalid_config"
    OFFSET_OUT_OF_RANGE = "offset_out_of_range"
    LOG_TRUNCATED = "log_truncated"  # what was read is no longer in the log: it was truncated or reset
    MESSAGE_NOT_FOUND = "message_not_found"
    CORRUPT_BATCH = "corrupt_batch"  # the client's batch is invalid
    PRODUCER_FENCED = "producer_fenced"  # a producer with this id and a higher epoch is active
    OUT_OF_SEQUENCE = "out_of_sequence"  # an earlier batch of this producer is missing, or has other boundaries
    ALREADY_APPENDED = "already_appended"  # but so long ago that its offsets are not known any more
    UNKNOWN_PRODUCER = "unknown_producer"  # it has appended nothing for long, or ever
    RUN_UNFINISHED = "run_unfinished"  # an earlier batch of the query is not completely published
    STAGED_LOST = "staged_lost"  # staged rows are missing: stage them again
    CORRUPT_RANGE = "corrupt_range"  # the stored data is corrupt
    READ_ONLY = "read_only"
    STORAGE_FAILED = "storage_failed"
    OUTCOME_UNKNOWN = "outcome_unknown"  # as the reason of another error: the data may or may not be stored
    OVERLOADED = "overloaded"
    NATS_UNAVAILABLE = "nats_unavailable"
    NATS_REFUSED = "nats_refused"
    NOT_LEADER = "not_leader"  # of the partition; `leader`, `address` and `leader_epoch` name the leader, if known
    FENCED_EPOCH = "fenced_epoch"  # the leader epoch has ended
    UNKNOWN_EPOCH = "unknown_epoch"  # this broker does not know the leader epoch yet: retry
    STALE_INCARNATION = "stale_incarnation"  # that run of a broker has ended or was fenced: it must register again
    NOT_METADATA_LEADER = "not_metadata_leader"  # `leader` names the metadata leader, if known
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    NO_ENCRYPTION_KEY = "no_encryption_key"  # brokers lack encryption keys, or the key of existing files
    CLUSTER_MISMATCH = "cluster_mismatch"  # a broker of another cluster, or with another broker's id
    KEY_ELSEWHERE = "key_elsewhere"  # another partition has the key: partitions were added, or a wrong request
    KEY_MOVING = "key_moving"  # to a new partition that starts in a moment: retry
    NOT_YET = "not_yet"  # ahead of this replica: retry, or ask another replica
    TOO_STALE = "too_stale"  # this replica has lost contact with its leader: ask the leader or another replica
    UNKNOWN_SESSION = "unknown_session"  # a follower's fetch session: it must begin a new one
    VERSION_CONFLICT = "version_conflict"  # the object was changed meanwhile
    BROKER_UNAVAILABLE = "broker_unavailable"
    UNKNOWN_MEMBER = "unknown_member"  # it left the group, or its session timed out
    FENCED_GENERATION = "fenced_generation"  # another member of the group may own the partition by now
    CONSUMER_NOT_FOUND = "consumer_not_found"
    CONSUMER_EXISTS = "consumer_exists"  # with another config
    JETSTREAM_OFF = "jetstream_off"  # this broker does not answer JetStream's API, so it has no consumers
    GROUP_IN_USE = "group_in_use"  # it has members, and only they may commit
    TLS_REQUIRED = "tls_required"  # the connection is plain, but this broker requires TLS
    CERTIFICATE_REFUSED = "certificate_refused"  # it is missing, or not valid for this purpose
    UNAUTHENTICATED = "unauthenticated"  # no valid login, or it has expired
    NOT_AUTHORIZED = "not_authorized"  # the caller lacks a permission; `operation` and `stream` name it
    THROTTLED = "throttled"  # a rate limit is exceeded and nothing was done: retry in `throttle_ms`
    QUOTA_EXCEEDED = "quota_exceeded"  # the user has reached a quota; `user`, `streams` and `streams_max` describe it
    USER_NOT_FOUND = "user_not_found"
    USER_EXISTS = "user_exists"
    INVALID_SCHEMA = "invalid_schema"  # it has mistakes, or its subject is not one for it
    INCOMPATIBLE_SCHEMA = "incompatible_schema"  # with a version before it; `reasons` lists why
    SCHEMA_NOT_FOUND = "schema_not_found"
    SCHEMA_MISMATCH = "schema_mismatch"  # a value does not fit the schema of its subject; `row` and `reason` say which
    STREAM_FULL = "stream_full"  # it discards new messages: this one would exceed one of its limits
    CHANGE_REFUSED = "change_refused"  # of the cluster's members: unsafe, or unsafe at present


class RemoteError(PenstockError):
    """A request that the broker (or the client's own checks) refused.

    `code` is stable and safe to branch on, `message` says what to do, `details` has the values.
    """

    def __init__(self, code: ErrorCode | str, message: str, **details: Any) -> None:
        super().__init__(message)
        # A newer broker may send a code unknown to this client: it stays a plain string.
        self.code: str = str(code)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class OperationalError(PenstockError):
    """The environment failed: disk, NATS, network. A later retry often succeeds."""


class ConfigError(PenstockError):
    """Invalid settings; `mistakes` lists all errors, each naming its setting."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class CorruptionError(PenstockError):
    """Bytes that fail their check. Nothing is deleted because of it. `advice`: what to do, if known."""

    def __init__(self, file: str, position: int, expected: object, found: object, *, advice: str = "") -> None:
        text = f"{file}: at byte {position}: expected {expected}, found {found}"
        super().__init__(f"{text}. {advice}" if advice else text)
        self.file = file
        self.position = position
        self.expected = expected
        self.found = found
        self.advice = advice

    def advised(self, advice: str) -> CorruptionError:
        """Return the same error with more advice."""
        whole = f"{self.advice} {advice}" if self.advice else advice
        return CorruptionError(self.file, self.position, self.expected, self.found, advice=whole)
