"""May whoever runs this do what it takes? Asked on the driver, once, before there are tasks.

Rules: the brokers decide about each request, whatever is said here. But a task that is refused is tried again, several
times, on several machines, and each time with a trace; and a stream with which a user may do nothing is not there for
him. So what is said here names the stream and the right.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.access import Operation
from penstock.base.errors import ErrorCode, RemoteError
from penstock.client.blocking import Client
from penstock.client.errors import NotAuthorized, StreamNotFound
from penstock.messages import StreamInfo


def check(
    client: Client, operation: Operation, streams: Iterable[str], timeout_s: float, subjects: tuple[str, ...] = ()
) -> None:
    """NotAuthorized: whoever asks may not do that with all of each stream, or with its messages on these subjects."""
    try:
        seen = client.users.all(timeout=timeout_s)
    except RemoteError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:  # a broker from before there were users
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
    """A stream. NotAuthorized: whoever asks may not do that, so it is not there for him; StreamNotFound."""
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
