"""The exceptions that a caller can catch, and how a warning reaches the caller.

| raised              | when                                                                         |
|---------------------|------------------------------------------------------------------------------|
| `RemoteError`       | base of all refusals; `code` is stable, `details` has the numbers            |
| `StreamNotFound`    | no stream has that name, or stores the subject                               |
| `StreamExists`      | a stream of that name exists with another subject or config                  |
| `StreamChanged`     | the stream was deleted (and perhaps recreated) while it was in use           |
| `InvalidConfig`     | an invalid stream config                                                     |
| `OffsetOutOfRange`  | below `log_start` or beyond `committed_end`; `details` has both              |
| `LogTruncated`      | rows already read are no longer in the log: it was truncated, or began anew  |
| `MessageNotFound`   | no message at that offset, of that key, on that subject                      |
| `GroupInUse`        | the group has members; only they may commit                                  |
| `MemberFenced`      | a group member lost the partition for which it commits                       |
| `CorruptRange`      | the stored data there are corrupted                                          |
| `ReadOnly`          | it accepts no messages: corrupted, paused, read-only or sealed               |
| `Overloaded`        | a limit of the broker is exceeded now; try again later                       |
| `NotEnoughReplicas` | too few brokers, or in-sync replicas; nothing was stored                     |
| `StorageFailed`     | the broker's disk failed or is full                                          |
| `StagedLost`        | the rows to publish are no longer staged; nothing was published              |
| `InvalidSchema`     | a schema has mistakes, or its subjects are not of the stream, or overlap     |
| `IncompatibleSchema`| a schema does not go with versions before it; `details` has the `reasons`    |
| `Unauthenticated`   | no credentials, wrong credentials, or a login that is no longer valid        |
| `NotAuthorized`     | the user has no permission; `details` has the `operation`                    |
| `TimedOut`          | the call's time-out passed; also a `TimeoutError`                            |
| `OperationalError`  | base of failures of the environment                                          |
| `Unavailable`       | no broker (or NATS) could be reached; also a `ConnectionError`               |
| `OutcomeUnknown`    | the connection broke after an append was sent: it may be stored or not; of a |
|                     | producer: its time-out passed, or the leader forgot it meanwhile             |
| `CorruptionError`   | bytes received from the broker fail their check                              |

The names have no `Error` suffix, because they are read after `except penstock.`.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from penstock.base.errors import ErrorCode, OperationalError, RemoteError


class StreamNotFound(RemoteError, LookupError):  # noqa: N818
    """No stream has that name, or stores the subject."""


class StreamExists(RemoteError):  # noqa: N818
    """A stream of that name exists with another subject or config, or the name is that of a partition."""


class StreamChanged(RemoteError):  # noqa: N818
    """The stream was deleted, and perhaps recreated, while it was in use."""


class InvalidConfig(RemoteError, ValueError):  # noqa: N818
    """The stream config is invalid; the message lists every mistake."""


class OffsetOutOfRange(RemoteError, LookupError):  # noqa: N818
    """The log does not hold this offset; `details` has `log_start` and `committed_end`."""


class LogTruncated(RemoteError):  # noqa: N818
    """Rows that were read, or about to be read, are no longer in the log.

    The log was truncated (durability `os` and a power loss, a data directory restored from a copy) or began anew (a
    memory stream after a restart of its broker); other messages may have the same offsets now. `details` has: `offset`,
    the reader's position; `end_offset`, up to which the rows read agree with the log; `log_start` and `committed_end`,
    the log's current range.
    Discard everything derived from rows from `end_offset` on, then read again from there (from EARLIEST if `end_offset`
    is below `log_start`).
    """


class InvalidSchema(RemoteError, ValueError):  # noqa: N818
    """A schema has mistakes, or its subjects are not those of the stream, or overlap others. Nothing was registered."""


class IncompatibleSchema(RemoteError, ValueError):  # noqa: N818
    """A schema is not compatible with versions before it; `details` has `reasons`. Nothing was registered."""


class Unauthenticated(RemoteError, PermissionError):  # noqa: N818
    """The client is not authenticated: no credentials, wrong credentials, or a login that is no longer valid."""


class NotAuthorized(RemoteError, PermissionError):  # noqa: N818
    """The user has no permission: no rule allows the operation. Nothing was done."""


class MessageNotFound(RemoteError, LookupError):  # noqa: N818
    """No message has that offset, that key, or that subject."""


class ConsumerNotFound(RemoteError, LookupError):  # noqa: N818
    """The partition has no consumer (of JetStream's API) of that name: it was deleted, or its inactivity ended it."""


class ConsumerExists(RemoteError):  # noqa: N818
    """A consumer (of JetStream's API) of that name exists, with another config; nothing was changed."""


class GroupInUse(RemoteError):  # noqa: N818
    """The group has members, and only they may commit; `details` has their number, `members`."""


class MemberFenced(RemoteError):  # noqa: N818
    """A group member was declared dead or lost a partition, which another may own now. Nothing was committed."""


class CorruptRange(RemoteError):  # noqa: N818
    """The stored data there are corrupted; nothing was deleted."""


class ReadOnly(RemoteError):  # noqa: N818
    """The stream accepts no messages: its log is corrupted, or it is paused, read-only or sealed."""


class Overloaded(RemoteError):  # noqa: N818
    """A limit of the broker is exceeded now; try again later."""


class NotEnoughReplicas(RemoteError):  # noqa: N818
    """Too few brokers, or too few in-sync replicas; nothing was stored."""


class StagedLost(RemoteError):  # noqa: N818
    """The staged rows are gone or were replaced by other rows; nothing was published. Stage them again."""


class StorageFailed(RemoteError):  # noqa: N818
    """The broker's disk failed or is full."""


class TimedOut(RemoteError, TimeoutError):  # noqa: N818
    """The call's time-out passed. The request may still be executed."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(ErrorCode.TIMED_OUT, message, **details)


class Unavailable(OperationalError, ConnectionError):  # noqa: N818
    """No broker (or NATS) could be reached, or the connection broke. `details` has a publish's `message_id`, if any."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


class ClientClosed(Unavailable):
    """The program has closed the client: waiting does not help."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class NotABroker(Unavailable):
    """Something else listens there, such as a NATS server."""


class LateAck(OperationalError):  # noqa: N818
    """The ack counts no more: the message was given to another client meanwhile, or its consumer is gone."""


class OutcomeUnknown(OperationalError):  # noqa: N818
    """The connection broke after an append was sent, or a producer got no answer in time.

    `appended` lists the results confirmed before.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.appended: list[Any] = []


_BY_CODE: dict[str, type[RemoteError]] = {
    ErrorCode.STREAM_NOT_FOUND: StreamNotFound,
    ErrorCode.STREAM_EXISTS: StreamExists,
    ErrorCode.STREAM_CHANGED: StreamChanged,
    ErrorCode.INVALID_CONFIG: InvalidConfig,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.LOG_TRUNCATED: LogTruncated,
    ErrorCode.MESSAGE_NOT_FOUND: MessageNotFound,
    ErrorCode.CONSUMER_NOT_FOUND: ConsumerNotFound,
    ErrorCode.CONSUMER_EXISTS: ConsumerExists,
    ErrorCode.GROUP_IN_USE: GroupInUse,
    ErrorCode.UNKNOWN_MEMBER: MemberFenced,
    ErrorCode.FENCED_GENERATION: MemberFenced,
    ErrorCode.CORRUPT_RANGE: CorruptRange,
    ErrorCode.READ_ONLY: ReadOnly,
    ErrorCode.OVERLOADED: Overloaded,
    ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    ErrorCode.STORAGE_FAILED: StorageFailed,
    ErrorCode.STAGED_LOST: StagedLost,
    ErrorCode.INVALID_SCHEMA: InvalidSchema,
    ErrorCode.INCOMPATIBLE_SCHEMA: IncompatibleSchema,
    ErrorCode.UNAUTHENTICATED: Unauthenticated,
    ErrorCode.NOT_AUTHORIZED: NotAuthorized,
}


def specific(error: RemoteError) -> RemoteError:
    """Return the error as the class of its code; a code without a class stays a plain RemoteError."""
    if type(error) is not RemoteError:
        return error
    if error.code == ErrorCode.TIMED_OUT:
        return TimedOut(error.message, **error.details)
    return _BY_CODE.get(error.code, RemoteError)(error.code, error.message, **error.details)


def warn_caller(warning: Warning) -> None:
    """Give the warning at the line outside this package that called it."""
    level, frame = 1, sys._getframe()  # noqa: SLF001 (`skip_file_prefixes` is new in Python 3.12)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("penstock."):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)
