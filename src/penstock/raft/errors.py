"""Errors of requests and writes that Raft refused."""

from __future__ import annotations

from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId


class NotLeaderError(RemoteError):
    """Only the leader can do this. `leader` is the leader as far as this broker knows, or None."""

    def __init__(self, leader: BrokerId | None) -> None:
        text = "no metadata leader is known" if leader is None else f"broker {leader} is the metadata leader"
        super().__init__(ErrorCode.NOT_METADATA_LEADER, f"{text}; ask again there", leader=leader)
        self.leader = leader


class ChangeRefusedError(RemoteError):
    """This membership change is not safe, or not safe now; the message says which."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CHANGE_REFUSED, message)


class NotWrittenError(OperationalError):
    """The disk refused the write and nothing was written; the same may be tried again."""
