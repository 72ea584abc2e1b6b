"""Names of partitions in texts, the counted reasons for refusals, and their error codes."""

from __future__ import annotations

from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.commitlog import LogCutError, ShortageError
from penstock.ingest import acks
from penstock.metadata.companions import name_for_users
from penstock.metadata.image import StreamState
from penstock.vfs.keys import missing_key

OVER_BUDGET = "over_budget"
FENCED = "fenced"
READ_ONLY = "read_only"
PAUSED = "paused"
SEALED = "sealed"
STORE_FAILED = "store_failed"
TOO_FEW_REPLICAS = "too_few_replicas"
NOT_LEADER = "not_leader"
KEY_ELSEWHERE = "key_elsewhere"
KEY_MOVING = "key_moving"
CODES = {
    STORE_FAILED: ErrorCode.STORAGE_FAILED,
    FENCED: ErrorCode.STORAGE_FAILED,
    READ_ONLY: ErrorCode.READ_ONLY,
    PAUSED: ErrorCode.READ_ONLY,
    SEALED: ErrorCode.READ_ONLY,
    OVER_BUDGET: ErrorCode.OVERLOADED,
    TOO_FEW_REPLICAS: ErrorCode.NOT_ENOUGH_REPLICAS,
    NOT_LEADER: ErrorCode.NOT_LEADER,
}


def partition_label(stream: StreamState, partition: int) -> str:
    """Return a partition's name for texts."""
    name = name_for_users(stream)
    return name if len(stream.partitions) == 1 else f"partition {partition} of {name}"


def outcome_unknown_text(reason: str) -> RemoteError:
    """Return the error for data that is written, and may or may not survive."""
    return RemoteError(ErrorCode.STORAGE_FAILED, f"{reason}; {acks.DOUBT}", reason=ErrorCode.OUTCOME_UNKNOWN)


def not_appended(error: OperationalError, *, is_fenced: bool) -> RemoteError:
    """Return the client's error for a batch that the log refused; `is_fenced`: it could not be cut back."""
    if is_fenced:
        return outcome_unknown_text(str(error))
    if (lacking := _without_key(error, "nothing was stored")) is not None:
        return lacking
    code = ErrorCode.OVERLOADED if isinstance(error, ShortageError) else ErrorCode.STORAGE_FAILED
    return RemoteError(code, f"nothing was stored: {error}")


def not_opened(error: Exception) -> RemoteError:
    """Return the error for a log that cannot be opened."""
    doing = "cannot open the log"
    if (lacking := _without_key(error, doing)) is not None:
        return lacking
    if isinstance(error, RemoteError) and error.code == ErrorCode.NO_ENCRYPTION_KEY:
        return RemoteError(error.code, f"{doing}: {error.message}", **error.details)
    return RemoteError(ErrorCode.STORAGE_FAILED, f"{doing}: {error}")


def read_failed(error: OSError) -> RemoteError:
    """Return the client's error for an answer in a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):  # the next look-up finds the new file, or that it is lost
        return RemoteError(ErrorCode.NOT_YET, "the segment was rewritten or removed meanwhile; ask again in a moment")
    doing = "the broker cannot read it"
    return _without_key(error, doing) or RemoteError(ErrorCode.STORAGE_FAILED, f"{doing}: {error}")


def _without_key(error: Exception, doing: str) -> RemoteError | None:
    """Return the error for a missing encryption key; None if that is not the cause."""
    lacking = missing_key(error)
    if lacking is None:
        return None
    then = "start it again" if lacking.is_other else "send it SIGHUP"  # while a broker runs, an id stands for one key
    advice = f"; put that key into the broker's encryption_keys_file, and {then}" if lacking.key_id else ""
    return RemoteError(ErrorCode.NO_ENCRYPTION_KEY, f"{doing}: {lacking}{advice}", key_id=lacking.key_id)


def as_remote_error(error: Exception) -> RemoteError:
    """Return the client's error for an exception in a disk thread."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, CorruptionError):
        text = f"what is stored there is damaged: {error}"
        return RemoteError(
            ErrorCode.CORRUPT_RANGE,
            text,
            file=error.file,
            position=error.position,
            expected=str(error.expected),
            found=str(error.found),
        )
    if (lacking := _without_key(error, "the broker cannot read it")) is not None:
        return lacking
    if isinstance(error, LogCutError):
        return RemoteError(ErrorCode.OVERLOADED, str(error))
    if isinstance(error, (OSError, OperationalError)):
        return RemoteError(ErrorCode.STORAGE_FAILED, f"the broker's disk failed: {error}")
    return RemoteError(ErrorCode.INTERNAL, f"internal error (bug): {type(error).__name__}: {error}")
