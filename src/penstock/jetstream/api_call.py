"""One request to JetStream's API: its subject, split into what it is about.

$JS.API.STREAM.MSG.GET.orders           prefix "$JS.API.", operation "STREAM.MSG.GET", stream "orders"
$JS.hub.API.DIRECT.GET.orders.eu.paris  prefix "$JS.hub.API.", "DIRECT.GET", "orders", rest "eu.paris"
$JS.API.CONSUMER.MSG.NEXT.orders.c1     "CONSUMER.MSG.NEXT", "orders", rest "c1"
$JS.API.INFO                            "INFO", no stream
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

HOPS_MAX = 2
"""Brokers that may pass on one request: the leader may change while it is on its way."""
_OPERATIONS = (
    "INFO",
    "STREAM.NAMES", "STREAM.LIST",
    "STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.DELETE", "STREAM.PURGE",
    "STREAM.MSG.GET", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE",
    "STREAM.LEADER.STEPDOWN", "STREAM.PEER.REMOVE", "STREAM.PEER.EVACUATE", "STREAM.CANCEL_MOVE",
    "DIRECT.GET",
    "CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.NAMES", "CONSUMER.LIST", "CONSUMER.INFO",
    "CONSUMER.DELETE", "CONSUMER.MSG.NEXT", "CONSUMER.PAUSE", "CONSUMER.RESET", "CONSUMER.UNPIN",
    "CONSUMER.LEADER.STEPDOWN",
    "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE", "ACCOUNT.STREAM.MOVE", "ACCOUNT.STREAM.CANCEL_MOVE",
)  # fmt: skip
_LONGEST_FIRST = sorted(_OPERATIONS, key=lambda one: -len(one))
_PARTS = re.compile(f"({'|'.join(map(re.escape, _LONGEST_FIRST))})(?:\\.([^.]*)(?:\\.(.*))?)?", re.DOTALL)


class ApiCall(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request as it came from NATS. It is passed on to other brokers as it is."""

    subject: str
    reply: bytes
    headers: bytes | None  # the header block, with its first line
    payload: bytes
    hops: int = 0  # how often brokers have passed it on
    received_us: int = 0  # wall time at the broker that answers

    @property
    def is_empty(self) -> bool:
        """True if it has no body, or an empty JSON object, as some clients send."""
        return not self.payload or b"".join(self.payload.split()) == b"{}"


class ApiSubject(msgspec.Struct, frozen=True):
    """The parts of an API subject; `stream` and `rest` are empty if there is none."""

    prefix: str
    operation: str  # one of JetStream's, or "" for an unknown one
    stream: str = ""
    rest: str = ""  # consumer, consumer and filter, or message subject


@lru_cache(maxsize=1_024)  # the requests of a reader have the same subject
def parse_api_subject(subject: str, prefixes: tuple[str, ...]) -> ApiSubject | None:
    """Split an API subject; None if it has none of the prefixes."""
    for prefix in prefixes:
        if subject.startswith(prefix):
            break
    else:
        return None
    found = _PARTS.fullmatch(subject, len(prefix))
    return ApiSubject(prefix, "") if found is None else ApiSubject(prefix, found[1], found[2] or "", found[3] or "")
