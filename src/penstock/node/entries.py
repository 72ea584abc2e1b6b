"""What the metadata log and its snapshots say, as far as this version knows it.

Rules: what a later version wrote is never half applied: brokers of two versions must not come to two images, and a
broker with half of the metadata would take folders of streams for nobody's.
"""

from __future__ import annotations

import msgspec

from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.metadata.apply import apply
from penstock.metadata.commands import Command, decode_command
from penstock.metadata.image import ClusterImage, Outcome
from penstock.metadata.snapshot import decode_image
from penstock.raft import Entry, EntryKind, Snapshot


class TooOldError(OperationalError):
    """This broker is too old for its cluster."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the metadata has something that this version does not know: upgrade this broker ({error})")


def command_in(entry: Entry) -> Command | None:
    """Its command; None if it is of another kind, or its command is none that this version knows."""
    if entry.kind is not EntryKind.COMMAND:
        return None
    try:
        return decode_command(entry.data)
    except msgspec.DecodeError:
        return None


def applied(image: ClusterImage, entry: Entry) -> tuple[ClusterImage, Command, Outcome | RemoteError]:
    """What an image becomes by the command of an entry, the command, and what came of it. TooOldError."""
    try:
        command = decode_command(entry.data)
        image, outcome = apply(image, entry.index, command)
    except msgspec.DecodeError as error:
        raise TooOldError(error) from None
    return image, command, outcome


def image_in(snapshot: Snapshot) -> ClusterImage:
    """What the metadata begins with; the one that a cluster is formed with holds members and nothing else.

    TooOldError; RemoteError bad_frame if it holds no image.
    """
    try:
        return decode_image(snapshot.data) if snapshot.data else ClusterImage()
    except RemoteError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise TooOldError(error) from None
