"""Pull requests: MSG.NEXT, and those that come with an ack (+NXT). Refusals are status messages, as nats-server's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode
from penstock.hot.deliveries import UNLIMITED
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.pulls import BadPullError, go_duration, parsed_pull, status
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.table import Readers
from penstock.metadata.image import StreamState


class PullRequests:
    """Takes pull requests, holds those that are too early, and refuses what a consumer does not allow."""

    def __init__(self, gateway: Gateway, readers: Readers) -> None:
        self._gateway = gateway
        self._readers = readers
        self._stored = readers.stored

    def next(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        """Take a MSG.NEXT request."""
        reader = self._asked_reader(call, subject)
        if reader is None or self._holds(reader, call, partial(self._next_held, call, subject, now.elapsed_us)):
            return
        self._pull(reader, call.reply, call.payload, now, now.elapsed_us)

    def _next_held(self, call: ApiCall, subject: ApiSubject, asked_us: int, now: Now) -> None:
        """Take a request that was held; much may have changed meanwhile."""
        if (reader := self._asked_reader(call, subject)) is not None:
            self._pull(reader, call.reply, call.payload, now, asked_us)

    def _holds(self, reader: Reader, call: ApiCall, serve: Callable[[Now], None]) -> bool:
        """Hold a request whose inbox is not known yet, and each of a stored consumer: what is sent to who has just
        gone comes again after `ack_wait` only. Clients of others begin anew at once if they miss something.
        """
        if reader.led is None and self._readers.deliveries.has_interest(call.reply) is not False:
            return False
        return self._readers.held.hold(call.payload, serve)

    def _asked_reader(self, call: ApiCall, subject: ApiSubject) -> Reader | None:
        """Return the reader that a request asks; None: it is answered, or waits."""
        state = self._gateway.stream(subject.stream)
        reader = None if state is None else self._readers.find(state, subject.rest)
        if reader is None and state is not None and self._waits_to_be_known(state, call):
            return None
        if reader is None:
            block = f"NATS/1.0 503\r\nNats-Subject: {call.subject}\r\n\r\n".encode()
            self._gateway.answer(call, b"", block)  # as nats-server answers without a subscriber
        return reader

    def _waits_to_be_known(self, state: StreamState, call: ApiCall) -> bool:
        """True if a request waits until it is known which stored consumers there are: its client would take the
        answer that there is none for the end of the consumer.
        """
        error = self._stored.leaderships.unknown(state)
        if error is None or error.code != ErrorCode.NOT_YET:
            return False
        self._stored.leaderships.wait(call)
        return True

    def next_after_ack(self, reader: Reader, reply: bytes, payload: bytes) -> None:
        """Take the pull request that came with an ack (+NXT)."""
        now = self._gateway.node.now
        if not self._readers.held.hold(payload, partial(self._after_ack_held, reader, reply, payload, now.elapsed_us)):
            self._pull(reader, reply, payload, now, now.elapsed_us)

    def _after_ack_held(self, reader: Reader, reply: bytes, payload: bytes, asked_us: int, now: Now) -> None:
        if self._readers.is_here(reader):
            self._pull(reader, reply, payload, now, asked_us)

    def _pull(self, reader: Reader, reply: bytes, payload: bytes, now: Now, asked_us: int) -> None:
        """Take a pull request that came at `asked_us`."""
        if self._readers.deliveries.mistake(reply) is not None:
            return  # nats-server would close the leaf connection
        tell = self._readers.status
        if self._readers.comes_back(reply):
            tell(
                reply,
                status(400, "Bad Request - what is sent to this reply subject comes back to a stream or the API"),
            )
            return
        if reader.config.is_push:
            tell(reply, status(409, "Consumer is push based"))
            return
        try:
            pull, priority = parsed_pull(payload, reply, asked_us)
        except BadPullError as error:
            tell(reply, status(400, f"Bad Request - {str(error)[:256]}"))
            return
        config = reader.config
        priorities = None if reader.led is None else reader.led.priorities
        mistake = priority.mistake(config.priority)
        if 0 < config.batch_max < pull.batch:
            tell(reply, status(409, f"Exceeded MaxRequestBatch of {config.batch_max}"))
        elif pull.expires_us != UNLIMITED and 0 < config.expires_us_max < pull.expires_us - asked_us:
            tell(reply, status(409, f"Exceeded MaxRequestExpires of {go_duration(config.expires_us_max)}"))
        elif 0 < config.request_bytes_max < pull.bytes_left:
            tell(reply, status(409, f"Exceeded MaxRequestMaxBytes of {config.request_bytes_max}"))
        elif mistake:
            tell(reply, status(400, f"Bad Request - {mistake}"))
        elif priorities is not None and (block := priorities.refusal(priority, now.elapsed_us)):
            tell(reply, block)
        elif pull.no_wait and pull.expires_us == UNLIMITED and self._readers.is_at_end(reader, now):
            tell(reply, status(404, "No Messages"))
        elif pull.no_wait and self._readers.is_promised(reader):
            tell(reply, status(408, "Requests Pending"))
        elif not self._readers.has_room(reader, now):
            if not pull.heartbeat_us:
                tell(reply, status(409, "Exceeded MaxWaiting"))
        else:
            if priorities is not None:
                priorities.ask(pull, priority, reader.pulls)
            self._readers.pull(reader, pull, now)
