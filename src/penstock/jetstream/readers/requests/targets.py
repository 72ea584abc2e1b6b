"""Targets of requests about consumers: the stream, the consumer, and where a push consumer delivers."""

from __future__ import annotations

from penstock.jetstream.api_call import ApiSubject
from penstock.jetstream.errors import consumer_not_found, consumer_refusal, delivery_cycle, stream_not_found
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.requests.unsettled import UnsettledConsumers
from penstock.jetstream.readers.table import Readers
from penstock.metadata.image import StreamState


class RequestTargets:
    """Finds the stream and the consumer of a request, and checks a deliver subject."""

    def __init__(self, gateway: Gateway, readers: Readers) -> None:
        self._gateway = gateway
        self._readers = readers
        self.unsettled = UnsettledConsumers(readers)

    def stream(self, subject: ApiSubject) -> StreamState:
        """Return the stream that a request names. Raise ApiError."""
        state = self._gateway.stream(subject.stream)
        if state is None:
            raise stream_not_found()
        return state

    def reader(self, subject: ApiSubject) -> Reader:
        """Return the consumer that a request names. Raise ApiError; RemoteError not_yet: it is not known here yet."""
        state = self.stream(subject)
        reader = self._readers.find(state, subject.rest)
        if reader is None:
            if (why := self._readers.stored.leaderships.unknown(state)) is not None:
                raise why  # it may be there
            raise consumer_not_found()
        return reader

    def check_inbox(self, subject: str) -> None:
        """Raise ApiError if nothing may be delivered there, or it would come back."""
        if (mistake := self._readers.deliveries.mistake(subject.encode())) is not None:
            raise consumer_refusal(10112, f"invalid push consumer deliver subject: {mistake}")
        if self._readers.comes_back(subject.encode()):
            raise delivery_cycle()
