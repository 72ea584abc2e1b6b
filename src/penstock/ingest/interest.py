"""Interest of a NATS account: which subjects have subscribers, as a leaf connection hears it.

Rules: bounded (INTEREST_KEYS_MAX, INTEREST_BYTES_MAX, INTEREST_SHAPES_MAX). What has no room is counted, and the answer
for a subject that is not found is then None, unknown: deliver, as if there were interest. It is known again once those
subscriptions have ended. Without a connection everything is unknown. Times are monotonic, in milliseconds.

A subscription may become known *after* a message that came over the client connection from the same subscriber, because
these are two connections, maybe to two nats-servers. So a watched subject without interest counts as lost only if none
has come within INTEREST_SETTLE_MS.

| state of a watched subject | until                                                                             |
|----------------------------|-----------------------------------------------------------------------------------|
| held by a key              | the key is removed: another key holds it, or it is lost                           |
| unseen                     | INTEREST_SETTLE_MS: a key holds it; or the interest is unknown: again; or lost    |
| lost                       | told once, and no longer watched                                                  |
"""

from __future__ import annotations

from functools import lru_cache

from penstock.base import limits
from penstock.hot.interest import SHAPE_TOKENS_MAX, InterestKeys


class InterestTable:
    """The interest that one leaf connection after the other tells."""

    def __init__(
        self,
        *,
        keys_max: int = limits.INTEREST_KEYS_MAX,
        size_bytes_max: int = limits.INTEREST_BYTES_MAX,
        watched_max: int = limits.INTEREST_WATCHED_MAX,
    ) -> None:
        self._keys_max = keys_max
        self._size_bytes_max = size_bytes_max
        self._watched_max = watched_max
        self._is_known = False  # True from the first full snapshot of a connection on
        self.scanned = InterestKeys(keys_max, size_bytes_max)
        """Keys that the current connection has told of; `hot.interest` fills it."""
        self._holders: dict[bytes, bytes] = {}  # watched subject → key; b"" while it is unseen
        self._unsettled: dict[bytes, None] = {}  # watched subjects whose key is gone, not looked at yet
        self._unseen: dict[bytes, int] = {}  # watched subject → when it counts as lost; in that order

    def __len__(self) -> int:
        return len(self.scanned.keys)

    @property
    def is_complete(self) -> bool:
        """True if every subscription of the account that the leaf's user may deliver to is known."""
        return self._is_known and not self.scanned.untracked and not self.scanned.queues_untracked

    @property
    def watched_count(self) -> int:
        """Number of watched subjects."""
        return len(self._holders)

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        """Return if the plain subject has subscribers; with `queue`, of this queue group only; None: unknown."""
        if self._key(subject, queue) is not None:
            return True
        scanned = self.scanned
        is_unknown = not self._is_known or (scanned.queues_untracked if queue else scanned.untracked)
        return None if is_unknown or subject.count(b".") >= SHAPE_TOKENS_MAX else False

    def groups(self, subject: bytes) -> bytes:
        """Return the queue groups with subscribers to a plain subject, separated by spaces; at most
        INTEREST_GROUPS_BYTES_MAX.
        """
        known = self.scanned.groups
        if not known:
            return b""
        tokens = subject.split(b".")
        patterns = (_pattern(tokens, shape) for shape in self.scanned.shapes)
        names = dict.fromkeys(known.get(subject, b"").split())
        for pattern in patterns:
            names.update(dict.fromkeys(known.get(pattern, b"").split()))
        joined = b" ".join(names)
        return joined if len(joined) <= limits.INTEREST_GROUPS_BYTES_MAX else _cut(joined)

    def regrouped(self) -> list[bytes] | None:
        """Return the subjects of subscriptions whose queue groups have changed since the last call; None: those of
        any may have.
        """
        scanned = self.scanned
        if not (scanned.regrouped or scanned.all_regrouped) or not self._is_known:
            return []
        found = None if scanned.all_regrouped else [*scanned.regrouped]
        scanned.regrouped.clear()
        scanned.all_regrouped = False
        return found

    def watch(self, subject: bytes, now_ms: int) -> bool:
        """Have the loss of interest in a plain subject told, once. Return False if too many are watched."""
        if subject in self._holders:
            return True
        if len(self._holders) >= self._watched_max:
            return False
        self._hold(subject, now_ms)
        return True

    def unwatch(self, subject: bytes) -> None:
        """End a watch; unknown subjects are ignored."""
        key = self._holders.pop(subject, None)
        self._unseen.pop(subject, None)
        self._unsettled.pop(subject, None)
        if key:
            self._release(key, subject)

    # What the session calls

    def begun(self) -> None:
        """A new connection: what the last one told is void."""
        self.scanned = InterestKeys(self._keys_max, self._size_bytes_max)
        self._is_known = False

    def snapshot_complete(self, now_ms: int) -> None:
        """nats-server has told of all subscriptions."""
        self._is_known = True
        for subject in self._holders:
            self._hold(subject, now_ms)

    def ended(self) -> None:
        """The connection is lost: nothing is known until the next one has told of all subscriptions."""
        self.begun()
        self._unseen.clear()
        self._unsettled.clear()
        for subject in self._holders:
            self._holders[subject] = b""

    def lost(self, now_ms: int) -> list[bytes]:
        """Return the watched subjects whose interest has ended since the last call. They are no longer watched.

        It looks at INTEREST_LOOKS_MAX of them: one subscription with wildcards may hold all.
        """
        lost: list[bytes] = []
        scanned = self.scanned
        for key in scanned.lost:
            if key not in scanned.keys:  # otherwise it has come back within one read
                for subject in scanned.watched.pop(key, ()):
                    self._holders[subject] = b""
                    self._unsettled[subject] = None
        scanned.lost.clear()
        for _ in range(limits.INTEREST_LOOKS_MAX):
            if self._unsettled:
                subject = next(iter(self._unsettled))
                del self._unsettled[subject]
            elif (due_ms := self.next_ms) is not None and due_ms <= now_ms:
                subject = next(iter(self._unseen))
                del self._unseen[subject]
            else:
                break
            self._settle(subject, now_ms, lost)
        return lost

    @property
    def next_ms(self) -> int | None:
        """When `lost` is due even if nothing is received; 0: now."""
        return 0 if self._unsettled else next(iter(self._unseen.values()), None)

    # Inside

    def _settle(self, subject: bytes, now_ms: int, lost: list[bytes]) -> None:
        if self.has_interest(subject) is False:
            del self._holders[subject]
            lost.append(subject)
        else:
            self._hold(subject, now_ms)

    def _hold(self, subject: bytes, now_ms: int) -> None:
        key = self._key(subject, b"")
        self._holders[subject] = key or b""
        if key:
            self.scanned.watched.setdefault(key, set()).add(subject)
        elif self._is_known:
            self._unseen[subject] = now_ms + limits.INTEREST_SETTLE_MS

    def _release(self, key: bytes, subject: bytes) -> None:
        subjects = self.scanned.watched.get(key)
        if subjects is not None:
            subjects.discard(subject)
            if not subjects:
                del self.scanned.watched[key]

    def _key(self, subject: bytes, queue: bytes) -> bytes | None:
        """Return a key of a subscription that gets messages on the subject."""
        keys = self.scanned.keys
        end = b" " + queue if queue else b""
        if subject + end in keys:
            return subject + end
        if not self.scanned.shapes:
            return None
        tokens = subject.split(b".")
        with_rest = None  # the last choice: it may hold all watched subjects, and then all are looked at when it ends
        for shape in self.scanned.shapes:
            has_rest = shape & 1
            if has_rest and with_rest is not None:
                continue
            if (pattern := _pattern(tokens, shape)) and (key := pattern + end) in keys:
                if not has_rest:
                    return key
                with_rest = key
        return with_rest


def _pattern(tokens: list[bytes], shape: int) -> bytes:
    """Return the pattern of that shape that the tokens of a subject match; empty: there is none."""
    count, has_rest = shape >> 1 & 31, shape & 1
    if len(tokens) <= count if has_rest else len(tokens) != count:
        return b""
    parts = tokens[:count]
    for place in _places(shape >> 6):
        parts[place] = b"*"
    if has_rest:
        parts.append(b">")
    return b".".join(parts)


def _cut(names: bytes) -> bytes:
    """Return the first names, as far as the limit allows."""
    end = limits.INTEREST_GROUPS_BYTES_MAX
    return names[:end] if names[end : end + 1] == b" " else names[:end].rpartition(b" ")[0]


@lru_cache(maxsize=4 * limits.INTEREST_SHAPES_MAX)
def _places(stars: int) -> tuple[int, ...]:
    """Return the places of the bits that are 1."""
    return tuple(place for place in range(SHAPE_TOKENS_MAX) if stars >> place & 1)
