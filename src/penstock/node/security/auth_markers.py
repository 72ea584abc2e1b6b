"""Marks in the data directory that require login and broker proofs from the first moment of a start.

Rules: a cluster that once had a user requires login for ever. A snapshot may be older than that user, and the log after
it may be applied only once other brokers were in contact: until then a broker would serve clients without a login. So a
data directory is marked, durably and before the change is acknowledged: `auth_markers` as soon as users are known;
`proving` as soon as all brokers of the cluster have proved their membership, or from the beginning if the data
directory begins with a cluster secret. With `proving` no peer is accepted without a proof, and clients are served only
while the image is current: the missing part may hold the first user. Only a cluster that once ran without a secret
lacks that mark for a while. Each mark blocks once in its life.
"""

from __future__ import annotations

from contextlib import closing

from penstock.metadata.image import ClusterImage
from penstock.node.context import Context
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.session import ClusterSession

GUARDED_PATH = "guarded"
PROVING_PATH = "proving"


class AuthMarkers:
    """The marks of one data directory."""

    def __init__(self, context: Context, session: ClusterSession, peers: PeerClient) -> None:
        self._vfs, self._settings, self._outbox = context.vfs, context.settings, context.outbox
        self._session = session
        self._peers = peers
        self._marks: set[str] = set()
        self._unwritten: set[str] = set()  # marks that could not be written yet
        self._failed_at: ClusterImage | None = None  # image at the last failed attempt

    @property
    def requires_login(self) -> bool:
        """True if every client has to log in, whatever the image says."""
        return self._settings.requires_login or GUARDED_PATH in self._marks

    @property
    def requires_proof(self) -> bool:
        """True if brokers have to prove their membership, with or without users."""
        return self._settings.proves_brokers and PROVING_PATH in self._marks

    def open(self, image: ClusterImage, *, has_data: bool) -> None:
        """Read the marks. `image`: what was read from the disk, if anything. Blocking. OSError."""
        self._marks = {GUARDED_PATH, PROVING_PATH} & set(self._vfs.list(""))
        if self._settings.proves_brokers and not has_data:
            self._mark(PROVING_PATH, image)
        self.update(image)

    def update(self, image: ClusterImage) -> None:
        """Set the marks that are due, after a change of the image or after some time.

        A mark that cannot be written holds for this run, and is retried with the next image.
        """
        if image.is_guarded and GUARDED_PATH not in self._marks:
            self._mark(GUARDED_PATH, image)
            if self._settings.open_nats:
                self._outbox.notice(self._settings.open_nats)
        if self._settings.proves_brokers and PROVING_PATH not in self._marks and self._session.is_current:
            others = image.brokers.keys() - {self._settings.broker_id}
            if all(map(self._peers.is_proven, others)):
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
            self._outbox.notice(f"cannot record in the data directory that authentication is required: {error}")
        else:
            self._unwritten.discard(path)
