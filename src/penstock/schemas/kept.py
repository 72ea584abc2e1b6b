"""The texts and versions of all streams, built from rows of `__schemas` in log order.

Rules: the state follows from the rows alone, so it is the same on every broker that reads them, in whatever batches.
Rows that this version does not know change nothing. All versions are kept: their number is limited before a row is
written, not here. Versions and bytes of texts count for users (`FairShares`): a text for the user who brought it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from penstock.base.fair_shares import FairShares
from penstock.schemas.rows import (
    StoredText,
    StoredVersion,
    VersionKey,
    decode_text,
    decode_text_key,
    decode_version,
    decode_version_key,
    encode_text_key,
    encode_version_key,
)

_NONE: Mapping[str, dict[int, StoredVersion]] = MappingProxyType({})


class KeptSchemas:
    """The schemas of one cluster."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[str, dict[int, StoredVersion]]] = {}
        self._texts: dict[str, StoredText] = {}
        self._uses: dict[str, int] = {}  # versions by hash of their text, also of a text that is not there
        self.shares = FairShares()  # versions by user
        self.text_shares = FairShares()  # bytes of texts by user

    def take(self, rows: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Apply the next rows of the log, each a key, value and timestamp."""
        for key, value, _ in rows:
            if (text_hash := decode_text_key(key)) is not None:
                self._take_text(text_hash, value)
            elif (place := decode_version_key(key)) is not None:
                self._take_version(place, value)

    def _take_text(self, text_hash: str, value: bytes | None) -> None:
        text = None if value is None else decode_text(value)
        if value is not None and text is None:
            return
        if (before := self._texts.pop(text_hash, None)) is not None:
            self.text_shares.remove(before.sharer, before.size)
        if text is not None:
            self._texts[text_hash] = text
            self.text_shares.add(text.sharer, text.size)

    def _take_version(self, place: VersionKey, value: bytes | None) -> None:
        version = None if value is None else decode_version(value)
        if value is not None and version is None:
            return
        subjects = self._streams.setdefault(place.stream_id, {})
        numbers = subjects.setdefault(place.subject, {})
        if (before := numbers.pop(place.number, None)) is not None:
            self.shares.remove(before.sharer)
            self._count(before.text_hash, -1)
        if version is not None:
            numbers[place.number] = version
            self.shares.add(version.sharer)
            self._count(version.text_hash, 1)
        if not numbers:
            del subjects[place.subject]
        if not subjects:
            del self._streams[place.stream_id]

    def _count(self, text_hash: str, change: int) -> None:
        count = self._uses.get(text_hash, 0) + change
        if count:
            self._uses[text_hash] = count
        else:
            del self._uses[text_hash]

    def __len__(self) -> int:
        """Number of versions."""
        return self.shares.used

    def of(self, stream_id: int) -> Mapping[str, Mapping[int, StoredVersion]]:
        """Return a stream's versions by pattern of subjects and number; read-only, and changed by later rows."""
        return self._streams.get(stream_id, _NONE)

    def versions(self, stream_id: int) -> list[tuple[VersionKey, StoredVersion]]:
        """Return a stream's versions, ordered by pattern of subjects and number."""
        return [
            (VersionKey(stream_id, subject, number), version)
            for subject, numbers in sorted(self.of(stream_id).items())
            for number, version in sorted(numbers.items())
        ]

    def text(self, text_hash: str) -> StoredText | None:
        """Return a text; None if it is not there."""
        return self._texts.get(text_hash)

    def uses_text(self, stream_id: int, text_hash: str) -> bool:
        """True if a version of the stream has that text."""
        return any(
            version.text_hash == text_hash for numbers in self.of(stream_id).values() for version in numbers.values()
        )

    def unused_after(self, gone: Iterable[VersionKey]) -> list[str]:
        """Return the hashes of the texts that no version has once these versions are gone, in order."""
        left = dict[str, int]()
        for place in gone:
            version = self.of(place.stream_id).get(place.subject, {}).get(place.number)
            if version is not None:
                text_hash = version.text_hash
                left[text_hash] = left.get(text_hash, self._uses[text_hash]) - 1
        return [text_hash for text_hash, count in left.items() if not count and text_hash in self._texts]

    def tombstones(self, gone: Iterable[VersionKey]) -> list[tuple[bytes, bytes | None]]:
        """Return the rows that delete these versions, and the texts that no other version has."""
        places = list(gone)
        return [
            *((encode_version_key(place), None) for place in places),
            *((encode_text_key(text_hash), None) for text_hash in self.unused_after(places)),
        ]

    def left_over(self, is_gone: Callable[[int], bool], count: int) -> list[VersionKey]:
        """Return up to `count` versions of deleted streams."""
        found: list[VersionKey] = []
        for stream_id in self._streams:
            if is_gone(stream_id):
                found += [place for place, _ in self.versions(stream_id)]
                if len(found) >= count:
                    return found[:count]
        return found
