"""The inboxes of readers: if a client subscribes to them, in which queue groups, and who is told once none does."""

from __future__ import annotations

from itertools import islice

from penstock.base.clock import Now
from penstock.jetstream.readers.deliveries import Deliveries
from penstock.jetstream.readers.reader import GRACE_US, Reader

INBOXES_LOOKED_AT = 32
"""Inboxes of requests in one look at a reader: the interest in one may take 0.1 ms to find."""
_WILDCARDS = frozenset((b"*", b">"))


class Inboxes:
    """Watched inboxes, of push readers and of requests."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._users: dict[bytes, set[Reader]] = {}

    def users(self, inbox: bytes) -> list[Reader]:
        """Return the readers that deliver to an inbox."""
        return [*self._users.get(inbox, ())]

    def enter(self, reader: Reader) -> None:
        """Note the deliver subject of a push reader."""
        if reader.config.is_push:
            self._users.setdefault(reader.inbox, set()).add(reader)

    def leave(self, reader: Reader) -> None:
        """Forget all inboxes of a reader."""
        for inbox in (reader.inbox, *reader.watched):
            self.forget(reader, inbox)

    def forget(self, reader: Reader, inbox: bytes) -> None:
        """Forget one inbox of a reader."""
        if (using := self._users.get(inbox)) is not None:
            using.discard(reader)
            if not using:
                del self._users[inbox]
                self._deliveries.unwatch(inbox)

    def lose(self, reader: Reader, inbox: bytes, now_us: int) -> None:
        """An inbox of a reader has no subscriber any more."""
        if not reader.config.is_push:
            self.forget(reader, inbox)
            reader.watched -= {inbox}
            reader.keep(pull for pull in reader.pulls if pull.inbox != inbox)
        reader.inactive_us = now_us

    def watch(self, reader: Reader) -> None:
        """Have it told when a client stops to wait for new messages: what is sent to its inbox then is lost."""
        inboxes = frozenset(pull.inbox for pull in islice(reader.pulls, INBOXES_LOOKED_AT))
        if inboxes <= reader.watched:
            return
        for inbox in reader.watched - inboxes:
            self.forget(reader, inbox)
        for inbox in inboxes - reader.watched:
            self._users.setdefault(inbox, set()).add(reader)
            self._deliveries.watch(inbox)
        reader.watched = inboxes

    def look(self, reader: Reader, now: Now) -> None:
        """Look if the inbox of a push reader has a subscriber; drop requests whose inboxes have none."""
        reader.looked_us = now.elapsed_us
        if not self._deliveries.is_up:
            return
        if reader.config.is_push:
            self._look_for_push(reader, now)
            return
        grace_us = now.elapsed_us - GRACE_US
        begin = reader.looked_at if reader.looked_at < len(reader.pulls) else 0
        reader.looked_at = begin + INBOXES_LOOKED_AT
        gone = {
            id(pull)
            for pull in islice(reader.pulls, begin, begin + INBOXES_LOOKED_AT)
            if pull.received_us <= grace_us and self._deliveries.has_interest(pull.inbox) is False
        }
        if gone:
            reader.looked_at -= len(gone)
            reader.keep(pull for pull in reader.pulls if id(pull) not in gone)

    def regroup(self) -> None:
        """Let push readers deliver to the queue groups that have come to their inboxes, and no more to others."""
        subjects = self._deliveries.regrouped()
        if subjects is None or not _WILDCARDS.isdisjoint(token for one in subjects for token in one.split(b".")):
            inboxes = list(self._users)
        else:
            inboxes = [one for one in subjects if one in self._users]
        for inbox in inboxes:
            if pushing := [reader for reader in self._users[inbox] if reader.config.is_push]:
                groups = self._deliveries.groups(inbox)
                for reader in pushing:
                    reader.regroup(groups)

    def _look_for_push(self, reader: Reader, now: Now) -> None:
        own = reader.config.deliver_group.encode()
        reader.regroup(groups := self._deliveries.groups(reader.inbox))
        if self._deliveries.has_interest(reader.inbox, own) is not False:
            reader.inactive_us = None
            self._deliveries.watch(reader.inbox)
            return
        self._deliveries.unwatch(reader.inbox)
        if groups and not own:
            reader.inactive_us = None  # any group may have them
        elif reader.inactive_us is None:
            reader.inactive_us = now.elapsed_us

    def ready_pulls(self, reader: Reader, now: Now) -> tuple[int, bool]:
        """Drop requests that no client waits for any more; return how many of the first ones may be sent messages, and
        if others came too lately to be dropped.

        A request whose inbox is not known yet lets the others go first.
        """
        pulls = reader.pulls
        wanted, is_early = 0, False
        for _ in range(min(len(pulls), INBOXES_LOOKED_AT)):
            pull = pulls[wanted]
            if self._deliveries.has_interest(pull.inbox) is not False:
                wanted += 1
                continue
            del pulls[wanted]
            if now.elapsed_us < pull.received_us + GRACE_US:
                pulls.append(pull)
                is_early = True
        return wanted, is_early
