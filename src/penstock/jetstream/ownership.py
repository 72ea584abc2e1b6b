"""Ownership of JetStream's API on NATS: this cluster answers, or another service (ADR 95).

Rules: a prefix is taken only on evidence that no other service has it: a request for its INFO finds no responders, or a
broker of this cluster; `$JS.API` moreover only while nats-server does not say that it has JetStream. The request is
repeated as long as the broker runs. If another one answers, the subscription ends, that is told loudly, and the prefix
is never taken back by this run of the broker. Without an answer of any kind nothing changes. The brokers of a cluster
recognise each other by a header that only this request asks for.

    PROBING ──no responders, or ours──▶ TAKEN
       └─────another one answers────────┴──▶ LEFT, until the broker is started again
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from penstock.base.clock import Now
from penstock.jetstream.answers import answer_headers, publish_command
from penstock.node.step import NatsAnswers, Outbox, Subscribe, Unsubscribe

PROBE_HEADER = "Penstock-Probe"
CLUSTER_HEADER = "Penstock-Cluster"
PUBLIC_PREFIX = "$JS.API."
QUEUE_GROUP = "penstock-api"
WATCH_US = 5_000_000
"""Time between two probes: for so long two may answer."""
SILENCE_US_MAX = 60_000_000
"""Longest time between two probes that nothing answers, as without the permission to ask."""
_NO_RESPONDERS = re.compile(rb"NATS/1\.0 503\b")
_CLUSTER = re.compile(rb"\r\n" + CLUSTER_HEADER.encode() + rb": *([^\r\n]*)\r\n", re.IGNORECASE)


class PrefixState(StrEnum):
    """State of a prefix at this broker."""

    PROBING = "probing"
    TAKEN = "taken"
    LEFT = "left"


class PrefixOwnership:
    """One API prefix at one broker."""

    def __init__(self, prefix: str, number: int, group: int, group_bits: int, outbox: Outbox) -> None:
        """`number` tells its subscriptions from those of other prefixes; `group`: the lower bits of their ids."""
        self.prefix = prefix
        self.state = PrefixState.PROBING
        self._group = group
        self._sid = (2 * number) << group_bits | group
        self._inbox_sid = (2 * number + 1) << group_bits | group
        self._outbox = outbox
        self._inbox = ""
        self._wait_us = WATCH_US
        self._is_unheard = False  # the last probe has no answer yet
        self._due_us: int | None = None  # when the next probe is due; None: NATS or the cluster are not known yet

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._due_us if self.state is not PrefixState.LEFT else None

    def connected(self, has_jetstream: bool, now: Now) -> None:
        """Note a new connection to NATS, perhaps to another server: probe again at once."""
        if self.state is PrefixState.LEFT:
            return
        if has_jetstream and self.prefix == PUBLIC_PREFIX:
            self._leave("nats-server has JetStream itself")
        else:
            self._wait_us, self._due_us = WATCH_US, now.elapsed_us

    def tick(self, now: Now, process: str) -> None:
        """Probe if it is due. `process`: a name of this run of the broker that no other one has."""
        if self.state is PrefixState.LEFT or self._due_us is None or now.elapsed_us < self._due_us:
            return
        if not self._inbox:
            if process:
                self._inbox = f"_INBOX.penstock.{process}.{self._sid}"
                self._outbox.step.nats.append(Subscribe(self._inbox_sid, self._inbox))
            self._due_us = now.elapsed_us + 1  # in the next turn: messages of one go out before its subscriptions
            return
        self._wait_us = min(2 * self._wait_us, SILENCE_US_MAX) if self._is_unheard else WATCH_US
        self._is_unheard = True
        self._due_us = now.elapsed_us + self._wait_us
        request = f"{self.prefix}INFO {self._inbox}".encode()
        command = publish_command(request, b"", answer_headers({PROBE_HEADER: "1"}))
        self._outbox.step.publish.append(NatsAnswers(self._group, command, is_single=True))

    def hears(self, subject: str, headers: bytes | None, cluster_id: str) -> bool:
        """Take the answer to a probe; False if the subject is another one."""
        if not self._inbox or subject != self._inbox:
            return False
        self._is_unheard = False
        found = _CLUSTER.search(headers or b"")
        is_ours = found is not None and found[1].strip() == cluster_id.encode()
        if self.state is not PrefixState.LEFT:
            if is_ours or (headers is not None and _NO_RESPONDERS.match(headers)):
                self._take()
            elif found is not None:
                self._leave("another Penstock cluster answers there")
            else:
                self._leave("a JetStream answers there")
        return True

    def refused(self, sid: int, reason: str) -> bool:
        """Note that NATS refused a subscription; False if it is another one."""
        if sid not in (self._sid, self._inbox_sid):
            return False
        self._leave(f"NATS refuses the subscription: {reason}")
        return True

    def _take(self) -> None:
        if self.state is PrefixState.PROBING:
            self.state = PrefixState.TAKEN
            self._outbox.step.nats.append(Subscribe(self._sid, f"{self.prefix}>", QUEUE_GROUP))

    def _leave(self, why: str) -> None:
        was, self.state = self.state, PrefixState.LEFT
        for sid in self._sids_of(was):
            self._outbox.step.nats.append(Unsubscribe(sid))
        text = f"JetStream's API is not served as {self.prefix}>: {why}"
        advice = "it stays so until this broker is started again"
        self._outbox.step.notices.append(f"{text}; {advice}")

    def _sids_of(self, state: PrefixState) -> Iterator[int]:
        if self._inbox:
            yield self._inbox_sid
        if state is PrefixState.TAKEN:
            yield self._sid
