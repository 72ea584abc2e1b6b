"""Everybody has to log in: known from the first moment of a start, whatever of the metadata was read by then.

Rules: a cluster with a first user has users for ever. A snapshot may be older than that user, and the log behind it
may be applied only once others were heard: till then a broker would serve anybody. So a data directory is marked as
soon as users are heard of, durably and before anybody is told that they are there. This blocks once in its life.
A broker that begins with nothing, and shares a secret with others, takes nobody for one of them without a proof until
it knows whether there are users: what it was told by then would be what it goes by.
"""

from __future__ import annotations

from contextlib import closing

from penstock.metadata.image import ClusterImage
from penstock.node.settings import Settings
from penstock.node.step import Outbox
from penstock.vfs import Vfs

GUARDED_PATH = "guarded"


class Guarded:
    """The mark of one data directory."""

    def __init__(self, vfs: Vfs, settings: Settings, outbox: Outbox) -> None:
        self._vfs = vfs
        self._settings = settings
        self._outbox = outbox
        self._is_marked = False
        self.has_begun_empty = False  # nothing was known at the start

    @property
    def requires_login(self) -> bool:
        """Whether everybody has to log in, whoever this broker has heard of."""
        return self._settings.requires_login or self._is_marked

    def open(self, image: ClusterImage, *, has_data: bool) -> None:
        """`image`: what was read from the disk, if there was something. Blocking. OSError."""
        self._is_marked = GUARDED_PATH in self._vfs.list("")
        self.has_begun_empty = not has_data
        self.look(image)

    def look(self, image: ClusterImage) -> None:
        """The image has changed. What cannot be written is tried again with the next change."""
        if self._is_marked or not image.is_guarded:
            return
        try:
            with closing(self._vfs.open(GUARDED_PATH, create=True)) as file:
                file.sync()
            self._vfs.sync_dir("")
        except OSError as error:
            self._outbox.notice(f"cannot note that everybody has to log in: {error}; start with --auth")
        else:
            self._is_marked = True
