"""The decision who serves JetStream's API under a prefix.

Rules: a decision replaces the one that it names, or is refused: two metadata leaders cannot both decide. A prefix is
taken only by the evidence of every broker that is live when the command is applied, in its present incarnation: one
that has been registered meanwhile may have found another service.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.api_decisions import PREFIXES_MAX, ApiDecision, ApiState
from penstock.metadata.commands import DecideApi
from penstock.metadata.image import ClusterImage, CommandOutcome

_NEXT = {
    None: {ApiState.WAITING},
    ApiState.WAITING: {ApiState.WAITING, ApiState.TAKEN, ApiState.WITHDRAWN, ApiState.FORGOTTEN},
    ApiState.TAKEN: {ApiState.WAITING, ApiState.WITHDRAWN},
    ApiState.WITHDRAWN: {ApiState.WAITING},
}


def decide_api(image: ClusterImage, index: int, command: DecideApi) -> tuple[ClusterImage, CommandOutcome]:
    """Record a decision. Raise RemoteError (change_refused) if it is not the next one, or evidence is missing."""
    before = image.api(command.prefix)
    if (0 if before is None else before.index) != command.before:
        raise _refused(command, "another decision was made meanwhile")
    if command.state not in _NEXT[None if before is None else before.state]:
        raise _refused(command, f"it cannot follow {'no decision' if before is None else before.state}")
    if before is None and len(image.apis) >= PREFIXES_MAX:
        raise _refused(command, f"there are {PREFIXES_MAX} prefixes")
    if command.state is ApiState.TAKEN:
        live = {(one.broker_id, one.incarnation) for one in image.brokers.values() if one.is_live}
        if missing := sorted(broker_id for broker_id, _ in live.difference(command.evidence)):
            raise _refused(command, f"broker {missing[0]} has given no evidence")
    others = [one for one in image.apis if one.prefix != command.prefix]
    if command.state is not ApiState.FORGOTTEN:
        asks = before is None or command.state is ApiState.WAITING
        others.append(
            ApiDecision(
                command.prefix,
                command.state,
                index,
                index if asks or before is None else before.since,
                command.decided_us,
                command.why,
                command.broker_id,
                command.by,
                command.held_back_by,
            )
        )
    return replace(image, apis=tuple(sorted(others, key=_prefix))), CommandOutcome(changed=True)


def _prefix(decision: ApiDecision) -> str:
    return decision.prefix


def _refused(command: DecideApi, why: str) -> RemoteError:
    return RemoteError(ErrorCode.CHANGE_REFUSED, f"{command.prefix}> is not {command.state}: {why}")
