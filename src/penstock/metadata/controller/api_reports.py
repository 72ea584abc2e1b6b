"""Brokers' reports on who else serves JetStream's API, kept by the metadata leader in memory, and the decisions due.

Rules: a prefix is taken once every live broker wants to serve it and has found no other service, each by evidence that
it gathered after it was asked. The strictest setting of the brokers holds: one that does not want to serve a prefix, or
reports nothing though it sends heartbeats (its `jetstream_api` is off), holds it back, and goes on doing so while it is
away. One broker that hears another service is enough to withdraw. Without evidence nothing changes: a broker that has
no NATS, or whose request for it is not answered, says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.ids import BrokerId, Incarnation
from penstock.messages import ApiEvidence, ApiFinding, ReportApiRequest
from penstock.metadata.api_decisions import WHY_CHARS_MAX, ApiDecision, ApiState
from penstock.metadata.commands import DecideApi
from penstock.metadata.image import ClusterImage

_NO_BROKER = BrokerId(0)
_AGE_US = limits.API_REPORT_AGE_MS * 1_000


class _Report(NamedTuple):
    incarnation: Incarnation
    at_us: int
    evidence: Mapping[str, ApiEvidence]  # by prefix, of those that the broker wants to serve


class ApiReports:
    """The last report of each broker."""

    def __init__(self) -> None:
        self._reports: dict[BrokerId, _Report] = {}
        self._live_since: dict[BrokerId, tuple[Incarnation, int]] = {}

    def clear(self) -> None:
        """Forget everything: meanwhile another metadata leader got the reports."""
        self._reports, self._live_since = {}, {}

    def add(self, request: ReportApiRequest, now: Now) -> None:
        """Take the report of a live broker."""
        evidence = {one.prefix: one for one in request.prefixes}
        self._reports[request.broker_id] = _Report(request.incarnation, now.elapsed_us, evidence)

    def due(self, image: ClusterImage, heard: frozenset[BrokerId], now: Now) -> Iterator[DecideApi]:
        """Yield the decisions that are due. `heard`: live brokers that have sent a heartbeat lately."""
        if not self._reports and not image.apis:
            return
        live = {one.broker_id: one.incarnation for one in image.brokers.values() if one.is_live}
        if not live:  # all are being started again: nothing is known of their settings
            return
        since = self._live_since
        self._live_since = {
            one: since[one] if since.get(one, (0, 0))[0] == run else (run, now.elapsed_us) for one, run in live.items()
        }
        self._reports = {one: report for one, report in self._reports.items() if live.get(one) == report.incarnation}
        overdue = frozenset(one for one in live if one in heard and self._is_overdue(one, now.elapsed_us))
        decided = {one.prefix: one for one in image.apis}
        wanted = {prefix for report in self._reports.values() for prefix in report.evidence}
        for prefix in sorted(wanted | decided.keys()):
            command = self._decision(prefix, decided.get(prefix), live, overdue, now)
            if command is not None:
                yield command

    def _is_overdue(self, broker_id: BrokerId, now_us: int) -> bool:
        report = self._reports.get(broker_id)
        at_us = self._live_since[broker_id][1] if report is None else report.at_us
        return now_us - at_us >= _AGE_US

    def _decision(
        self,
        prefix: str,
        before: ApiDecision | None,
        live: Mapping[BrokerId, Incarnation],
        overdue: frozenset[BrokerId],
        now: Now,
    ) -> DecideApi | None:
        def decide(state: ApiState, why: str, broker_id: BrokerId = _NO_BROKER, **more: Any) -> DecideApi:
            return DecideApi(
                prefix=prefix,
                before=0 if before is None else before.index,
                state=state,
                decided_us=now.wall_us,
                why=why[:WHY_CHARS_MAX],
                broker_id=broker_id,
                **more,
            )

        fresh = {one: report for one, report in sorted(self._reports.items()) if one not in overdue}
        said = {one: report.evidence.get(prefix) for one, report in fresh.items()}
        if before is None:
            return decide(ApiState.WAITING, "") if any(said.values()) else None
        if before.state is ApiState.WITHDRAWN:
            return None
        counted = {one: found for one, found in said.items() if found is not None and found.since >= before.since}
        for one, found in counted.items():
            if found.finding is ApiFinding.ANOTHER:
                return decide(ApiState.WITHDRAWN, f"broker {one}: {found.why}", one)
        refusing = tuple(sorted({*overdue, *(one for one, found in said.items() if found is None)}))
        if len(refusing) == len(live):
            return decide(ApiState.FORGOTTEN, "") if before.state is ApiState.WAITING else _held_back(decide, refusing)
        if refusing:
            is_news = before.state is ApiState.TAKEN or not set(refusing) <= set(before.held_back_by)
            return _held_back(decide, (*refusing, *before.held_back_by)) if is_news else None
        free = {one for one, found in counted.items() if found.finding is ApiFinding.NOBODY}
        if before.state is ApiState.WAITING and free.issuperset(live) and live.keys() >= set(before.held_back_by):
            return decide(ApiState.TAKEN, "no broker finds another service there", evidence=tuple(sorted(live.items())))
        return None


def _held_back(decide: Callable[..., DecideApi], refusing: tuple[BrokerId, ...]) -> DecideApi:
    held = tuple(sorted(set(refusing)))
    names = f"broker {held[0]}" if len(held) == 1 else f"brokers {', '.join(map(str, held))}"
    why = f"the settings jetstream_api and jetstream_domain of {names} do not allow it"
    return decide(ApiState.WAITING, why, held[0] if len(held) == 1 else _NO_BROKER, held_back_by=held)
