"""What somebody is told who may not do what he asks; what is not there for him is told in the words of what is not."""

from __future__ import annotations

from penstock.access import Operation
from penstock.access.handshake import Principal
from penstock.base.errors import ErrorCode, RemoteError


def denied(who: Principal | None, operation: Operation, where: str) -> RemoteError:
    """What somebody is told who may not do that."""
    name = "somebody" if who is None else who.name
    on = f" on {where}" if where else ""
    if operation is Operation.ADMIN:
        text = f"that is for administrators, and user {name!r} is none (`penstock acl list`)"
    else:
        text = f"user {name!r} may not {operation.replace('_', ' ')}{on}: no rule allows it (`penstock acl list`)"
    return RemoteError(ErrorCode.NOT_AUTHORIZED, text, operation=str(operation), user=name)


def gone(stream_id: int) -> RemoteError:
    """The same for one that was deleted and for one that is not for whoever asks."""
    text = f"stream {stream_id} was deleted, or is none that you may see"
    return RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=stream_id)


def unheard(stream_id: int) -> RemoteError:
    """Of a stream of which this broker has not heard."""
    return RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream with id {stream_id}", stream_id=stream_id)


def absent(name: str) -> RemoteError:
    """Of a stream that is not there, or not for whoever asks."""
    return RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}, or none that you may see", name=name)
