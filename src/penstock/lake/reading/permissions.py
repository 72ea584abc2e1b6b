"""Permission check on the driver, once, before tasks run.

Rules: the brokers check the permissions of each request; this check gives a better error. Spark retries a refused task
several times, on several machines, each time with a trace, and the brokers report a stream as not found if the user has
no permission for it. The error here names the stream and the missing permission.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.access import Operation
from penstock.base.errors import ErrorCode, RemoteError
from penstock.client.blocking.client import Client
from penstock.client.errors import NotAuthorized, StreamNotFound
from penstock.messages import StreamInfo


def check(
    client: Client, operation: Operation, streams: Iterable[str], timeout_s: float, subjects: tuple[str, ...] = ()
) -> None:
    """Raise NotAuthorized unless the user has the permission for each stream as a whole, or for `subjects` of it."""
    try:
        seen = client.users.all(timeout=timeout_s)
    except RemoteError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:  # an older broker has no users
            return
        raise
    if not (seen.is_guarded and seen.user):
        return
    for stream in streams:
        for subject in subjects or ("",):
            told = client.users.may(seen.user, operation, stream=stream, subject=subject, timeout=timeout_s)
            if not told.is_allowed:
                raise _denied(seen.user, operation, stream, subject, told.reason)


def there(
    client: Client, operation: Operation, name: str, timeout_s: float, subjects: tuple[str, ...] = ()
) -> StreamInfo:
    """Return a stream. Raise StreamNotFound, or NotAuthorized if it is hidden because the permission is missing."""
    try:
        return client.stream(name, timeout=timeout_s)
    except StreamNotFound:
        check(client, operation, (name,), timeout_s, subjects)
        raise


def _denied(user: str, operation: Operation, stream: str, subject: str, reason: str) -> NotAuthorized:
    on = f", subject {subject!r}" if subject else ""
    what = f"user {user!r} may not {operation} on stream {stream!r}{on}"
    hint = f"an administrator allows it with `penstock acl add {user} {operation} --stream {stream}`"
    return NotAuthorized(ErrorCode.NOT_AUTHORIZED, f"{what}: {reason}; {hint}", operation=str(operation), user=user)
