"""The reason why a broker is not yet part of its cluster, for operators."""

from __future__ import annotations

from penstock.base.ids import BrokerId
from penstock.node.control.startup_conflicts import StartupConflicts
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.registration import BrokerRegistration


def not_ready_reason(
    quorum: Quorum, standing: BrokerRegistration, belonging: StartupConflicts, broker_id: BrokerId, reachable: int
) -> str:
    """Return the reason; empty once `broker_id` is part of it. `reachable`: voters it reaches, itself included."""
    if quorum.missed:
        return quorum.missed
    if standing.incarnation is not None or quorum.is_alone:
        return ""
    if quorum.trouble:
        return quorum.trouble
    if standing.refusal:
        return f"waiting to be registered: {standing.refusal}"
    if quorum.leader is not None:
        return f"waiting to be registered by broker {quorum.leader}"
    if reason := quorum.cluster_formation.obstacle or belonging.refusal:
        return reason
    voters = quorum.membership.voters
    if broker_id not in voters:
        return "waiting to be added to the cluster" if not voters else "waiting to hear of the metadata leader"
    if reachable <= len(voters) // 2:
        return f"waiting for a majority: {reachable} of {len(voters)} voters reachable"
    reason = f"waiting to hear of the metadata leader: {reachable} of {len(voters)} voters reachable"
    if older := quorum.peer_fencing.older_copies:
        reason += f"; {_named(older)} not counted: on an older copy of its data directory"
    return reason


def _named(brokers: tuple[BrokerId, ...]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {', '.join(map(str, brokers))}"
