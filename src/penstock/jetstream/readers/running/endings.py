"""Readers that end because of what changes around them: leaders, rights, and where streams take messages from."""

from __future__ import annotations

from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.metadata.image import ClusterImage

_ANY = frozenset((b"*", b">"))


class Endings:
    """Ends readers, by the newest image."""

    def __init__(self, gateway: Gateway, registry: ReaderRegistry) -> None:
        self._gateway = gateway
        self._registry = registry
        self._image: ClusterImage | None = None  # the last one that was looked at
        self._firsts_of: object = None  # names of the image that has these
        self._firsts: set[bytes] = set()  # first tokens of the subjects of all streams

    def look(self) -> None:
        """End the readers that a new image ends."""
        node = self._gateway.node
        if node.image is self._image:
            return
        has_other_subjects = self._image is None or node.image.names is not self._image.names
        self._image = node.image
        for feed in self._registry.feeds():
            if not self._is_led(feed):
                self._registry.lose(feed)
        self._end_unreadable()
        if has_other_subjects:
            self._end_stored()

    def comes_back(self, inbox: bytes) -> bool:
        """Return if what is delivered there is stored by a stream, or is a request to JetStream's API."""
        if inbox.startswith(b"$JS."):
            return True
        node = self._gateway.node
        if self._firsts_of is not node.image.names:
            self._firsts_of = node.image.names
            subjects = (one for state in node.image.streams.values() for one in state.config.subjects)
            self._firsts = {subject.partition(".")[0].encode() for subject in subjects}
        may_be = inbox.partition(b".")[0] in self._firsts or not self._firsts.isdisjoint(_ANY)
        return may_be and node.is_stored(inbox.decode(errors="replace"))

    def _is_led(self, feed: Feed) -> bool:
        """True if this broker leads the stream, as it did when its readers began."""
        state = self._gateway.stream_of(feed.stream_id)
        partition = None if state is None else state.partitions[0]
        is_led = partition is not None and partition.leader == self._gateway.node.broker_id
        return partition is not None and is_led and partition.leader_epoch == feed.leader_epoch

    def _end_unreadable(self) -> None:
        """End readers that may not read any more: their stream's config, or the rights of the API's user, changed."""
        feeds = self._registry.feeds()
        if not feeds:
            return
        who = self._gateway.authorization.who
        for feed in feeds:
            state = self._gateway.stream_of(feed.stream_id)
            assert state is not None  # the others have been ended
            before, feed.rights = feed.rights, (who, self._gateway.read_subjects(state))
            if not state.config.is_nats_readable:
                gone = list(feed.readers.values())
            elif feed.rights == before or self._gateway.may_read(state, None):
                gone = []
            else:
                filters = {reader.config.filters for reader in feed.readers.values()}
                refused = {one for one in filters if not self._gateway.may_read(state, one or None)}
                gone = [reader for reader in feed.readers.values() if reader.config.filters in refused]
            if gone:
                self._registry.remove(gone)

    def _end_stored(self) -> None:
        """End what would be delivered into a stream: the rows would come back to it for ever."""
        if not self._registry.total:
            return
        for feed in self._registry.feeds():
            pushes = [one for one in feed.readers.values() if one.config.is_push and self.comes_back(one.inbox)]
            if pushes:
                self._registry.remove(pushes)
            for reader in feed.readers.values():
                kept = [pull for pull in reader.pulls if not self.comes_back(pull.inbox)]
                if len(kept) < len(reader.pulls):
                    reader.keep(kept)
                    self._registry.changed(reader, self._gateway.node.now)
