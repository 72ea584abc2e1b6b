"""What a broker asks of others from the first moment of a start, whatever of the metadata was read by then.

Rules: a cluster with a first user has users for ever. A snapshot may be older than that user, and the log behind it
may be applied only once others were heard: till then a broker would serve anybody. So a data directory is marked,
durably and before anybody is told: `guarded` as soon as users are heard of; `proving` as soon as all brokers of the
cluster have proved to be its own, or from its beginning where it begins with a secret of the cluster. From `proving`
on nobody is taken for a broker without a proof, and clients are served only by what cannot be long past: what was
missed may be the first user. Only a cluster that ran without a secret before is without that mark for a while.
Each mark blocks once in its life.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock.base.ids import BrokerId
from penstock.metadata.image import ClusterImage
from penstock.node.settings import Settings
from penstock.node.step import Outbox
from penstock.vfs import Vfs

GUARDED_PATH = "guarded"
PROVING_PATH = "proving"


class Guarded:
    """The marks of one data directory."""

    def __init__(
        self,
        vfs: Vfs,
        settings: Settings,
        outbox: Outbox,
        is_proven: Callable[[BrokerId], bool],
        is_current: Callable[[], bool],
    ) -> None:
        """`is_proven`: whether that broker is there, and has proved to be one of this cluster's; `is_current`: whether
        the image cannot be long past: brokers that are not in it cannot have proved anything.
        """
        self._vfs = vfs
        self._settings = settings
        self._outbox = outbox
        self._is_proven = is_proven
        self._is_current = is_current
        self._marks: set[str] = set()
        self._unwritten: set[str] = set()  # of these, what could not be written yet
        self._failed_at: ClusterImage | None = None  # when that was tried last

    @property
    def requires_login(self) -> bool:
        """Whether everybody has to log in, whoever this broker has heard of."""
        return self._settings.requires_login or GUARDED_PATH in self._marks

    @property
    def requires_proof(self) -> bool:
        """Whether brokers have to prove that they are, whether or not there are users."""
        return self._settings.proves_brokers and PROVING_PATH in self._marks

    def open(self, image: ClusterImage, *, has_data: bool) -> None:
        """`image`: what was read from the disk, if there was something. Blocking. OSError."""
        self._marks = {GUARDED_PATH, PROVING_PATH} & set(self._vfs.list(""))
        if self._settings.proves_brokers and not has_data:
            self._mark(PROVING_PATH, image)
        self.look(image)

    def look(self, image: ClusterImage) -> None:
        """The image has changed, or time has passed.

        What cannot be written holds for this run, and is tried again with the next image.
        """
        if image.is_guarded and GUARDED_PATH not in self._marks:
            self._mark(GUARDED_PATH, image)
            if self._settings.open_nats:
                self._outbox.notice(self._settings.open_nats)
        if self._settings.proves_brokers and PROVING_PATH not in self._marks and self._is_current():
            others = image.brokers.keys() - {self._settings.broker_id}
            if all(map(self._is_proven, others)):
                self._mark(PROVING_PATH, image)
        if self._unwritten and image is not self._failed_at:
            for path in sorted(self._unwritten):
                self._write(path, image)

    def _mark(self, path: str, image: ClusterImage) -> None:
        self._marks.add(path)
        self._unwritten.add(path)
        self._write(path, image)

    def _write(self, path: str, image: ClusterImage) -> None:
        try:
            with closing(self._vfs.open(path, create=True)) as file:
                file.sync()
            self._vfs.sync_dir("")
        except OSError as error:
            self._failed_at = image
            self._outbox.notice(f"cannot note in the data directory that everybody has to show who they are: {error}")
        else:
            self._unwritten.discard(path)
