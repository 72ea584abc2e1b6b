"""A client of JetStream's API: sends requests, and takes their answers, over NATS that may lose them.

Rules: an answer is one message, or with `until` all messages up to the one that ends it. Without the end within the
time-out it is None: what came before it may have a hole, because NATS loses messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.nats import PublishedMessage, Received

API = b"$JS.API."
TIMEOUT_US = 5_000_000
Until = Callable[[PublishedMessage], bool]


def status_of(message: PublishedMessage) -> str:
    """Return the status of a message, such as "404 Message Not Found"; empty: it is none."""
    return message.headers.partition(b"\r\n")[0].decode().removeprefix("NATS/1.0").strip()


def field_of(message: PublishedMessage, name: str) -> str:
    """Return a header; empty: it is not there."""
    for line in message.headers.decode().split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def fields_of(message: PublishedMessage | None) -> dict[str, Any]:
    """Return the JSON of an answer; empty: none has come, or a status."""
    return {} if message is None or not message.value else json.loads(message.value)


class ApiClient:
    """All requests of one run."""

    def __init__(self, around: Surroundings, inboxes: bytes = b"_INBOX.api.") -> None:
        """`inboxes`: prefix of inboxes that no other client has."""
        self._around = around
        self._inboxes = inboxes
        self._numbers = 0

    def inbox(self) -> bytes:
        """Return a new inbox."""
        self._numbers += 1
        return b"%b%d" % (self._inboxes, self._numbers)

    def subscribe(self, inbox: bytes, take: Received) -> None:
        self._around.nats.subscribe(inbox, take)

    def unsubscribe(self, inbox: bytes) -> None:
        self._around.nats.unsubscribe(inbox)

    def send(self, subject: bytes, reply: bytes, payload: bytes = b"") -> None:
        """Publish a request whose answers come to an inbox of the caller's."""
        around = self._around
        message = PublishedMessage(subject, reply, b"", payload)
        around.scheduler.after(around.network.delay_us(), lambda: around.nats.request(message))

    def ask(
        self, operation: str, request: dict[str, Any] | None, done: Callable[[PublishedMessage | None], None]
    ) -> None:
        """Ask for one message; `done` is called once. None: no answer."""
        self.ask_all(operation, request, lambda _: True, lambda found: done(found[0] if found else None))

    def ask_all(
        self,
        operation: str,
        request: dict[str, Any] | None,
        until: Until,
        done: Callable[[list[PublishedMessage]], None],
    ) -> None:
        """Ask for messages; `done` is called once, with nothing if the end has not come."""
        inbox = self.inbox()
        found: list[PublishedMessage] = []

        def end(answer: list[PublishedMessage]) -> None:
            timer.cancel()
            self.unsubscribe(inbox)
            done(answer)

        def take(message: PublishedMessage) -> None:
            found.append(message)
            if until(message):
                end(found)

        timer = self._around.scheduler.after(TIMEOUT_US, lambda: end([]))
        self.subscribe(inbox, take)
        payload = b"" if request is None else json.dumps(request).encode()
        self.send(API + operation.encode(), inbox, payload)
