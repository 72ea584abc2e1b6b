"""Decode the entries and snapshots of the metadata log, as far as this version knows them.

Rules: what a later version wrote is never half applied: brokers of two versions must not arrive at two images, and a
broker with half of the metadata would quarantine folders of existing streams.
"""

from __future__ import annotations

import msgspec

from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.metadata.commands import Command, decode_command
from penstock.metadata.effects.apply import apply
from penstock.metadata.feature_levels import level_of, level_text
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.persistence.snapshot import decode_image
from penstock.raft import Entry, EntryKind, Snapshot


class TooOldError(OperationalError):
    """This broker's version is too old for its cluster's metadata."""

    @classmethod
    def unknown(cls, error: Exception) -> TooOldError:
        return cls(f"the metadata has something that this version does not know: upgrade this broker ({error})")


def command_in(entry: Entry) -> Command | None:
    """Return the command of an entry; None if it holds none, or none that this version knows."""
    if entry.kind is not EntryKind.COMMAND:
        return None
    try:
        return decode_command(entry.data)
    except msgspec.DecodeError:
        return None


def applied(
    image: ClusterImage, entry: Entry, broker_version: str
) -> tuple[ClusterImage, Command, CommandOutcome | RemoteError]:
    """Apply the command of an entry to an image; return the new image, the command and its outcome.

    TooOldError if a broker of that version must not apply it.
    """
    try:
        command = decode_command(entry.data)
        image, outcome = apply(image, entry.index, command)
    except msgspec.DecodeError as error:
        raise TooOldError.unknown(error) from None
    _check_level(image, broker_version)
    return image, command, outcome


def image_in(snapshot: Snapshot, broker_version: str) -> ClusterImage:
    """Return the image of a snapshot; the one that a new cluster begins with holds members only, and no image.

    TooOldError; RemoteError bad_frame if it cannot be decoded.
    """
    try:
        image = decode_image(snapshot.data) if snapshot.data else ClusterImage()
    except RemoteError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise TooOldError.unknown(error) from None
    _check_level(image, broker_version)
    return image


def _check_level(image: ClusterImage, broker_version: str) -> None:
    if level_of(broker_version) < image.feature_level:
        level = level_text(image.feature_level)
        raise TooOldError(
            f"the cluster is at feature level {level}, which is never lowered, and this broker is of version "
            f"{broker_version}: start it with version {level} or later"
        )
