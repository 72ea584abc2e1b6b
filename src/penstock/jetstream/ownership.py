"""Ownership of JetStream's API on NATS: this broker's evidence, and its part in the cluster's decision (ADR 98).

Rules: the cluster decides in its metadata, for all brokers (`penstock.metadata.api_decisions`). A broker finds out who
else serves a prefix by a request for its INFO: no responders, or only brokers of its own cluster, which it tells by a
header that only this request asks for. `$JS.API` is another service's also while nats-server says that it has
JetStream. Without an answer of any kind nothing is known: nats-server says `no responders` only without a subscriber
there, so a monitor on `>` is enough to keep it silent, and so is a service that is slow. After UNHEARD_MAX such probes
the log says so. The request is repeated as long as the broker runs, and what it finds goes to the metadata leader: at
once if it is news, else every 5 s.

A broker serves a prefix while all of this holds:

- the decision that it has applied is TAKEN, and it has heard of the metadata leader within API_LEASE_MS: no decision
  that it has not applied is older than that;
- it has found no other service, and has found none once since it started.

So a broker that hears another service leaves at once, and the others when the decision reaches them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import RemoteError
from penstock.base.ids import Incarnation
from penstock.jetstream.answers import answer_headers, publish_command
from penstock.jetstream.node_access import GatewayNode
from penstock.messages import ApiEvidence, ApiFinding, ReportApiRequest, Response
from penstock.metadata.api_decisions import ApiDecision, ApiState
from penstock.metadata.feature_levels import JETSTREAM_API
from penstock.metadata.feature_versions import missing
from penstock.node.step import NatsAnswers, Subscribe, Unsubscribe

PROBE_HEADER = "Penstock-Probe"
CLUSTER_HEADER = "Penstock-Cluster"
PUBLIC_PREFIX = "$JS.API."
QUEUE_GROUP = "penstock-api"
"""Begins the name of a cluster's queue group. Each cluster has its own, so that each of two answers every probe."""
WATCH_US = 5_000_000
"""Time between two probes, and between two reports: for so long two may answer before one of them knows it."""
SILENCE_US_MAX = 60_000_000
"""Longest time between two probes that nothing answers, as without the permission to ask, and while withdrawn."""
UNHEARD_MAX = 2
"""Probes without an answer, one after the other, before an operator is told: a first one may be lost."""
_RETRY_US = 1_000_000  # between two reports that did not arrive
_NO_RESPONDERS = re.compile(rb"NATS/1\.0 503\b")
_CLUSTER = re.compile(rb"\r\n" + CLUSTER_HEADER.encode() + rb": *([^\r\n]*)\r\n", re.IGNORECASE)


class PrefixOwnership:
    """One API prefix at one broker."""

    def __init__(self, prefix: str, number: int, group: int, group_bits: int, node: GatewayNode) -> None:
        """`number` tells its subscriptions from those of other prefixes; `group`: the lower bits of their ids."""
        self.prefix = prefix
        self.finding = ApiFinding.UNKNOWN
        self.is_served = False  # subscribed
        self._node = node
        self._group = group
        self._sid = (2 * number) << group_bits | group
        self._inbox_sid = (2 * number + 1) << group_bits | group
        self._inbox = ""
        self._why = ""
        self._since = 0  # `since` of the decision under which it was found
        self._has_jetstream = False
        self._refusal = ""  # why NATS refuses a subscription
        self._was_free = False  # no other service was found, once since the start
        self._wait_us = WATCH_US
        self._is_unheard = False  # the last probe has no answer yet
        self._unheard = 0  # probes without an answer, before that one
        self._due_us: int | None = None  # when the next probe is due; None: no connection to NATS yet
        self._told: tuple[ApiState, str] | None = None  # what the log says last

    # Evidence

    @property
    def decision(self) -> ApiDecision | None:
        """The cluster's decision, as far as this broker has applied it."""
        return self._node.image.api(self.prefix)

    @property
    def evidence(self) -> ApiEvidence:
        """The finding of this broker, for the metadata leader."""
        return ApiEvidence(self.prefix, self.finding, self._since, self._why[: limits.API_WHY_CHARS_MAX])

    def connected(self, has_jetstream: bool, now: Now) -> None:
        """Note a new connection to NATS, perhaps to another server: probe again at once."""
        self._has_jetstream = has_jetstream and self.prefix == PUBLIC_PREFIX
        self._refusal = ""
        self._wait_us, self._due_us = WATCH_US, now.elapsed_us

    def probe(self, now: Now) -> None:
        """Probe if that is due, or if another decision asks for evidence."""
        decision = self.decision
        if self._due_us is None or decision is None or not self._node.process:
            return
        is_asked = decision.since != self._since
        if not is_asked and now.elapsed_us < self._due_us:
            return
        if not self._inbox:
            self._inbox = f"_INBOX.penstock.{self._node.process}.{self._sid}."  # and the decision that asks
            self._node.outbox.step.nats.append(Subscribe(self._inbox_sid, f"{self._inbox}>"))
            self._due_us = now.elapsed_us + 1  # in the next turn: messages of one go out before its subscriptions
            return
        if is_asked:
            self._since, self._is_unheard, self._wait_us = decision.since, False, WATCH_US
            self._find(ApiFinding.UNKNOWN, "", is_new=True)
        elif self._is_unheard:
            self._find(ApiFinding.UNKNOWN, "nothing answers there, not even nats-server")
            self._unheard += 1
            if self._unheard == UNHEARD_MAX and not self.is_served:
                self._node.outbox.step.notices.append(f"JetStream's API is not served yet here: {self.unknown}")
        self._wait_us = min(2 * self._wait_us, SILENCE_US_MAX) if self._is_unheard else WATCH_US
        if decision.state is ApiState.WITHDRAWN:
            self._wait_us = SILENCE_US_MAX
        self._due_us = now.elapsed_us + self._wait_us
        if self._refusal:
            self._find(ApiFinding.UNKNOWN, self._refusal)
        elif self._has_jetstream:
            self._find(ApiFinding.ANOTHER, "nats-server has JetStream itself")
        else:
            self._is_unheard = True
            request = f"{self.prefix}INFO {self._inbox}{self._since}".encode()
            command = publish_command(request, b"", answer_headers({PROBE_HEADER: "1"}))
            self._node.outbox.step.publish.append(NatsAnswers(self._group, command, is_single=True))

    def hears(self, subject: str, headers: bytes | None) -> bool:
        """Take the answer to a probe; False if the subject is another one."""
        if not self._inbox or not subject.startswith(self._inbox):
            return False
        if subject != f"{self._inbox}{self._since}":
            return True  # another decision asks for evidence by now
        self._is_unheard, self._unheard = False, 0
        found = _CLUSTER.search(headers or b"")
        is_ours = found is not None and found[1].strip() == self._node.cluster_id.encode()
        if is_ours or (headers is not None and _NO_RESPONDERS.match(headers)):
            self._find(ApiFinding.NOBODY, "")
        else:
            who = "a JetStream" if found is None else "another Penstock cluster"
            self._find(ApiFinding.ANOTHER, f"{who} answers there")
        return True

    def refused(self, sid: int, reason: str) -> bool:
        """Note that NATS refused a subscription; False if it is another one."""
        if sid not in (self._sid, self._inbox_sid):
            return False
        self._refusal = f"NATS refuses the subscription: {reason}"
        self._find(ApiFinding.UNKNOWN, self._refusal)
        self._node.outbox.step.notices.append(f"JetStream's API is not served as {self.prefix}> here: {self._refusal}")
        return True

    def _find(self, finding: ApiFinding, why: str, *, is_new: bool = False) -> None:
        """Note a finding. Another service stays found until the cluster has withdrawn, or asks for evidence again."""
        decision = self.decision
        is_kept = decision is not None and decision.state is not ApiState.WITHDRAWN and not is_new
        if not (is_kept and self.finding is ApiFinding.ANOTHER):
            self.finding, self._why = finding, why
        self._was_free = self._was_free or finding is ApiFinding.NOBODY

    @property
    def unknown(self) -> str:
        """Why it is not known if another service has the prefix, and what to do; empty if it is, or soon may be."""
        if self.is_served or self.finding is not ApiFinding.UNKNOWN:
            return ""
        if self._refusal:
            return f"{self.prefix}>: {self._refusal}"
        if self._unheard < UNHEARD_MAX:
            return ""
        what = f"{self.prefix}>: nothing answers there, not even nats-server"
        return f"{what}: end subscriptions of others to it, as `>` of a monitor, or let this broker publish on it"

    # Serving

    def may_answer(self, now: Now, lease_us: int) -> bool:
        """True if this broker serves the prefix now; `lease_us`: elapsed time until which it may."""
        return self.is_served and now.elapsed_us < lease_us

    def serve(self, now: Now) -> None:
        """Begin or end to serve by the decision, and tell it."""
        decision = self.decision
        is_taken = decision is not None and decision.state is ApiState.TAKEN
        is_allowed = is_taken and now.elapsed_us < self._node.api_lease_us
        is_free = self._was_free and self.finding is not ApiFinding.ANOTHER and not self._refusal
        if (is_allowed and is_free) != self.is_served:
            self.is_served = not self.is_served
            queue = f"{QUEUE_GROUP}-{self._node.cluster_id}"
            subscribe = Subscribe(self._sid, f"{self.prefix}>", queue)
            self._node.outbox.step.nats.append(subscribe if self.is_served else Unsubscribe(self._sid))
        if decision is not None and (decision.state, decision.why) != self._told:
            self._told = decision.state, decision.why
            if notice := _notice(decision):
                self._node.outbox.step.notices.append(notice)

    @property
    def is_decided(self) -> bool:
        """True if this broker serves the prefix, or will not soon."""
        decision = self.decision
        if decision is None:
            return False
        is_off = decision.state is ApiState.WITHDRAWN or bool(decision.held_back_by) or bool(self._refusal)
        return is_off or self.is_served or self.finding is ApiFinding.ANOTHER

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `probe` must run, or `serve`."""
        if self._due_us is None:
            return None
        decision = self.decision
        dues = [] if decision is None else [0 if decision.since != self._since else self._due_us]
        if self.is_served:
            dues.append(self._node.api_lease_us)
        return min(dues, default=None)


def _notice(decision: ApiDecision) -> str:
    """Return what an operator is to know of a decision; empty if nothing."""
    what = f"JetStream's API is not served as {decision.prefix}>"
    if decision.state is ApiState.WITHDRAWN:
        advice = "it stays so until that one is gone and `penstock cluster take-api` takes it back"
        return f"{what}: {decision.why}; {advice}"
    if decision.held_back_by:
        return f"{what}: {decision.why}; the strictest setting of all brokers holds, give them all the same"
    return ""


class ApiOwnership:
    """All API prefixes that this broker wants to serve, and its reports on them."""

    def __init__(self, prefixes: Iterable[str], group: int, group_bits: int, node: GatewayNode) -> None:
        self.prefixes = {
            prefix: PrefixOwnership(prefix, number, group, group_bits, node) for number, prefix in enumerate(prefixes)
        }
        self._node = node
        self._seen: tuple[ApiDecision, ...] | None = None  # the decisions at the last tick
        self._reported: tuple[Incarnation, tuple[ApiEvidence, ...]] | None = None  # None: to be reported again
        self._report_us = 0  # when the next report is due
        self._refusal = ""

    def connected(self, has_jetstream: bool, now: Now) -> None:
        """Note a connection to NATS, and whether its server says that it has JetStream."""
        for one in self.prefixes.values():
            one.connected(has_jetstream, now)

    def hears(self, subject: str, headers: bytes | None, now: Now) -> bool:
        """Take the answer to a probe; False if the subject is another one."""
        for one in self.prefixes.values():
            if one.hears(subject, headers):
                one.serve(now)
                self._report(now)
                return True
        return False

    def refused(self, sid: int, reason: str, now: Now) -> None:
        """Note that NATS refused a subscription."""
        for one in self.prefixes.values():
            if one.refused(sid, reason):
                one.serve(now)

    @property
    def has_news(self) -> bool:
        """True if a decision has been applied that `tick` has not seen."""
        return self._node.image.apis is not self._seen

    def tick(self, now: Now) -> None:
        """Probe, report, begin and end to serve."""
        self._seen = self._node.image.apis
        if not self._node.cluster_id:
            return
        for one in self.prefixes.values():
            one.probe(now)
            one.serve(now)
        self._report(now)

    def _report(self, now: Now) -> None:
        """Report to the metadata leader what is news, and from time to time all."""
        incarnation = self._node.incarnation
        if incarnation is None:
            return
        if (error := missing(self._node.image, JETSTREAM_API)) is not None:  # the metadata leader may not know reports
            self._report_us = now.elapsed_us + WATCH_US
            self._tell_refusal(error)
            return
        self._refusal = ""
        said = incarnation, tuple(one.evidence for one in self.prefixes.values())
        if now.elapsed_us < self._report_us and (said == self._reported or self._reported is None):
            return
        self._reported, self._report_us = said, now.elapsed_us + WATCH_US

        def answered(response: Response | RemoteError) -> None:
            if self._reported is not said:
                return
            if isinstance(response, RemoteError):
                self._reported, self._report_us = None, now.elapsed_us + _RETRY_US

        request = ReportApiRequest(broker_id=self._node.broker_id, incarnation=incarnation, prefixes=said[1])
        self._node.ask_metadata_leader(request, answered)

    def _tell_refusal(self, error: RemoteError) -> None:
        is_formed = bool(self._node.image.cluster_id)  # with its feature level
        if is_formed and error.message != self._refusal:
            self._refusal = error.message
            self._node.outbox.step.notices.append(f"JetStream's API is not served: {error.message}")

    @property
    def is_decided(self) -> bool:
        """True once it is known which prefixes this broker serves."""
        return bool(self._refusal) or all(one.is_decided for one in self.prefixes.values())

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        if self._node.incarnation is None or not self._node.cluster_id:
            return None
        dues = [self._report_us]
        dues += [due_us for one in self.prefixes.values() if (due_us := one.next_deadline_us) is not None]
        return min(dues, default=None)
