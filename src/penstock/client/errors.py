"""What a caller can catch, by name.

| raised                | when                                                                        |
|-----------------------|-----------------------------------------------------------------------------|
| `RemoteError`         | base of all refusals; `code` is stable, `details` are its numbers             |
| `StreamNotFound`      | no stream of that name, or none that stores the subject                      |
| `StreamExists`        | a stream of that name is there with another subject or config                |
| `StreamChanged`       | the stream was deleted (and perhaps made again) while it was being used       |
| `InvalidConfig`       | a stream config that cannot work                                             |
| `OffsetOutOfRange`    | below `log_start` or beyond `committed_end`; `details` has both                |
| `LogTruncated`        | rows that were read are not in the log any more: it was cut, or began anew     |
| `MessageNotFound`     | no message at that offset, of that key, on that subject                       |
| `GroupInUse`          | the group has members: only they commit                                      |
| `MemberFenced`        | a member of a group lost what it was about to commit for                     |
| `CorruptRange`        | what is stored there is damaged                                              |
| `ReadOnly`            | it takes no messages: damaged, paused, read-only or sealed                   |
| `Overloaded`          | over the broker's limits now; try again later                                |
| `NotEnoughReplicas`   | too few brokers are there, or in sync; nothing was stored                     |
| `StorageFailed`       | the broker's disk refused it                                                 |
| `StagedLost`          | what was to be published is not staged any more; nothing was published        |
| `Unauthenticated`     | nobody has proved who asks: no credentials, wrong ones, or they count no more  |
| `NotAuthorized`       | who asks may not do that; `details` says what: `operation`                    |
| `TimedOut`            | the call's time-out passed; also a `TimeoutError`                             |
| `OperationalError`    | base of what the environment did                                             |
| `Unavailable`         | no broker (or NATS) could be reached; also a `ConnectionError`                |
| `OutcomeUnknown`      | the connection broke after an append was sent: it may be stored or not; of a   |
|                       | producer: its time-out passed, or it was forgotten meanwhile                  |
| `CorruptionError`     | bytes that came from the broker fail their check                             |

The names say what happened, without a suffix, as they are read after `except penstock.`.
"""

from __future__ import annotations

from typing import Any

from penstock.base.errors import ErrorCode, OperationalError, RemoteError


class StreamNotFound(RemoteError, LookupError):  # noqa: N818
    """No stream of that name, or none that stores the subject."""


class StreamExists(RemoteError):  # noqa: N818
    """A stream of that name is there with another subject or config."""


class StreamChanged(RemoteError):  # noqa: N818
    """The stream was deleted, and perhaps made again, while it was being used."""


class InvalidConfig(RemoteError, ValueError):  # noqa: N818
    """A stream config that cannot work; the message lists every mistake."""


class OffsetOutOfRange(RemoteError, LookupError):  # noqa: N818
    """The log holds no such offset; `details` has `log_start` and `committed_end`."""


class LogTruncated(RemoteError):  # noqa: N818
    """What was read (or was about to be) is not in the log any more.

    The log was cut (durability `os` and a power loss, a data directory put back from a copy) or began anew (a memory
    stream after a restart of its broker); perhaps other messages have the same offsets by now. `details` has:
    `offset`, where the reader was; `end_offset`, up to which what it read agrees with the log; `log_start` and
    `committed_end`, what the log holds now.

    Drop whatever was made of the rows from `end_offset` on, then read again from there (from EARLIEST, if
    `end_offset` is below `log_start`).
    """


class Unauthenticated(RemoteError, PermissionError):  # noqa: N818
    """Nobody has proved who asks: there are no credentials, they are wrong, or they count no more."""


class NotAuthorized(RemoteError, PermissionError):  # noqa: N818
    """Who asks may not do that: no rule allows it. Nothing was done."""


class MessageNotFound(RemoteError, LookupError):  # noqa: N818
    """No message at that offset, of that key, or on that subject."""


class GroupInUse(RemoteError):  # noqa: N818
    """The group has members, and only they commit; `details` has how many `members`."""


class MemberFenced(RemoteError):  # noqa: N818
    """A member of a group was taken for gone, or lost a partition: another one may have it. Nothing was committed."""


class CorruptRange(RemoteError):  # noqa: N818
    """What is stored there is damaged; nothing was deleted."""


class ReadOnly(RemoteError):  # noqa: N818
    """It takes no messages: its log is damaged, or the stream is paused, read-only or sealed."""


class Overloaded(RemoteError):  # noqa: N818
    """Over the broker's limits now; try again later."""


class NotEnoughReplicas(RemoteError):  # noqa: N818
    """Too few brokers are there, or in sync; nothing was stored."""


class StagedLost(RemoteError):  # noqa: N818
    """What was staged is not there any more, or other rows are: nothing was published; stage them again."""


class StorageFailed(RemoteError):  # noqa: N818
    """The broker's disk refused it."""


class TimedOut(RemoteError, TimeoutError):  # noqa: N818
    """The call's time-out passed. What was asked may still happen."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(ErrorCode.TIMED_OUT, message, **details)


class Unavailable(OperationalError, ConnectionError):  # noqa: N818
    """No broker (or NATS) could be reached, or the connection broke."""


class OutcomeUnknown(OperationalError):  # noqa: N818
    """The connection broke after an append was sent, or a producer heard nothing in time.

    `appended` lists what was confirmed before.
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
    ErrorCode.GROUP_IN_USE: GroupInUse,
    ErrorCode.UNKNOWN_MEMBER: MemberFenced,
    ErrorCode.FENCED_GENERATION: MemberFenced,
    ErrorCode.CORRUPT_RANGE: CorruptRange,
    ErrorCode.READ_ONLY: ReadOnly,
    ErrorCode.OVERLOADED: Overloaded,
    ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    ErrorCode.STORAGE_FAILED: StorageFailed,
    ErrorCode.STAGED_LOST: StagedLost,
    ErrorCode.UNAUTHENTICATED: Unauthenticated,
    ErrorCode.NOT_AUTHORIZED: NotAuthorized,
}


def specific(error: RemoteError) -> RemoteError:
    """The same error as the class that its code has here; a code without one stays a plain RemoteError."""
    if type(error) is not RemoteError:
        return error
    if error.code == ErrorCode.TIMED_OUT:
        return TimedOut(error.message, **error.details)
    return _BY_CODE.get(error.code, RemoteError)(error.code, error.message, **error.details)
