"""Requests about consumers: CREATE, INFO, NAMES, LIST, DELETE, MSG.NEXT, PAUSE, RESET, UNPIN.

Rules: they reach the leader of the stream, which holds its readers. Answers and refusals are nats-server's; those of
each kind of request are made in `requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from penstock.base.clock import Now
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Conversation, done
from penstock.jetstream.gateway import Gateway, Handler, Talk
from penstock.jetstream.readers.requests.changes import ConsumerChanges
from penstock.jetstream.readers.requests.creation import ConsumerCreation
from penstock.jetstream.readers.requests.infos import ConsumerInfos
from penstock.jetstream.readers.requests.pull_requests import PullRequests
from penstock.jetstream.readers.requests.targets import RequestTargets
from penstock.jetstream.readers.requests.transfers import ConsumerTransfers
from penstock.jetstream.readers.table import Readers


class ConsumerApi:
    """Hands each request to what answers it."""

    def __init__(self, gateway: Gateway, readers: Readers, new_name: Callable[[], str]) -> None:
        """`new_name` returns a name for a consumer without one."""
        self._gateway = gateway
        self._leaderships = readers.stored.leaderships
        targets = RequestTargets(gateway, readers)
        self._infos = ConsumerInfos(gateway, readers, targets)
        self._changes = ConsumerChanges(gateway, readers, targets, self._infos)
        self._creation = ConsumerCreation(gateway, readers, targets, self._changes, self._infos, new_name)
        self._transfers = ConsumerTransfers(readers, targets, self._creation)
        self._pulls = PullRequests(gateway, readers)
        readers.stored.next_pull = self._pulls.next_after_ack

    def talks(self) -> Mapping[str, Talk]:
        """Return what answers in steps, by operation."""
        talks = {
            "CONSUMER.CREATE": self._creation.create,
            "CONSUMER.DURABLE.CREATE": self._creation.create,
            "CONSUMER.INFO": self._infos.info,
            "CONSUMER.NAMES": self._infos.names,
            "CONSUMER.LIST": self._infos.infos,
            "CONSUMER.DELETE": self._changes.delete,
            "CONSUMER.PAUSE": self._changes.pause,
            "CONSUMER.RESET": self._changes.reset,
            "CONSUMER.UNPIN": self._changes.unpin,
        }
        return {name: partial(self._when_known, talk) for name, talk in talks.items()}

    def own_talks(self) -> Mapping[str, Talk]:
        """Return what only the socket API asks for."""
        talks = {
            "CONSUMER.EXPORT": self._transfers.export,
            "CONSUMER.EXPORTS": self._transfers.exports,
            "CONSUMER.RESTORE": self._transfers.restore,
        }
        return {name: partial(self._when_known, talk) for name, talk in talks.items()}

    def handlers(self) -> Mapping[str, Handler]:
        def talking(talk: Talk) -> Handler:
            def handle(call: ApiCall, subject: ApiSubject, now: Now) -> None:
                self._gateway.converse(call, subject, now, talk(call, subject, now))

            return handle

        return {**{name: talking(talk) for name, talk in self.talks().items()}, "CONSUMER.MSG.NEXT": self._pulls.next}

    def _when_known(self, talk: Talk, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Begin once it is known which stored consumers the stream has."""
        state = self._gateway.stream(subject.stream)
        if state is not None and self._leaderships.unknown(state) is not None:
            yield from done(partial(self._leaderships.know, state))
        return (yield from talk(call, subject, now))
