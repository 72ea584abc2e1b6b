"""The application of the simulation: it folds commands to a digest, so that any difference in the past can be seen."""

from __future__ import annotations

import hashlib

from penstock.raft import Entry, EntryKind, Snapshot

DIGEST_BYTES = 16


def folded(digest: bytes, entry: Entry) -> bytes:
    """The digest behind one more entry."""
    if entry.kind is not EntryKind.COMMAND:
        return digest
    return hashlib.sha256(digest + b"%d %d " % (entry.term, entry.index) + entry.data).digest()[:DIGEST_BYTES]


class Application:
    """`index` is that of the last entry applied."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.index = snapshot.index
        self.digest = snapshot.data[:DIGEST_BYTES] or bytes(DIGEST_BYTES)

    def apply(self, entry: Entry) -> None:
        """The next entry."""
        assert entry.index == self.index + 1, "applied in order, each once"
        self.index = entry.index
        self.digest = folded(self.digest, entry)

    def image(self, padding_bytes: int) -> bytes:
        """What a snapshot holds; padded, so that it takes several chunks."""
        return self.digest + bytes(padding_bytes)
