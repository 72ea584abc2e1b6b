"""Authorisation errors. A stream that the caller may not see is reported as not found."""

from __future__ import annotations

from penstock.access import Operation
from penstock.access.handshake import Principal
from penstock.base.errors import ErrorCode, RemoteError


def not_authorized(who: Principal | None, operation: Operation, where: str) -> RemoteError:
    """Return the error for a missing permission."""
    name = "somebody" if who is None else who.name
    on = f" on {where}" if where else ""
    if operation is Operation.ADMIN:
        text = f"user {name!r} is not an administrator; this operation requires the admin rule (`penstock acl list`)"
    elif operation is Operation.MONITOR:
        text = f"user {name!r} may not monitor the cluster: this operation requires the rule monitor or admin"
        text += " (`penstock acl list`)"
    else:
        text = f"user {name!r} may not {operation.replace('_', ' ')}{on}: no rule allows it (`penstock acl list`)"
    return RemoteError(ErrorCode.NOT_AUTHORIZED, text, operation=str(operation), user=name)


def stream_deleted(stream_id: int) -> RemoteError:
    """Return the error for a stream id that was deleted, or that the caller may not see."""
    text = f"stream {stream_id} was deleted, or you may not see it"
    return RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=stream_id)


def stream_unknown_here(stream_id: int) -> RemoteError:
    """Return the error for a stream id that this broker does not know."""
    return RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream with id {stream_id}", stream_id=stream_id)


def stream_not_found(name: str) -> RemoteError:
    """Return the error for a stream name that does not exist, or that the caller may not see."""
    return RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}, or you may not see it", name=name)
