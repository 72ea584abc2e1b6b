"""All targets. A module with further ones is named here."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz import (
    targets_batches,
    targets_config,
    targets_consumer_requests,
    targets_consumers,
    targets_gateway,
    targets_groups,
    targets_hot,
    targets_idl,
    targets_live,
    targets_log,
    targets_metadata,
    targets_nats,
    targets_node,
    targets_raft,
    targets_values,
    targets_wire,
)
from tests.fuzz.target import Target


def _by_name(targets: Iterable[Target]) -> dict[str, Target]:
    found: dict[str, Target] = {}
    for target in targets:
        assert target.name not in found, target.name
        found[target.name] = target
    return found


TARGETS: dict[str, Target] = _by_name(
    target
    for module in (
        targets_wire,
        targets_nats,
        targets_batches,
        targets_log,
        targets_raft,
        targets_metadata,
        targets_groups,
        targets_consumers,
        targets_config,
        targets_consumer_requests,
        targets_node,
        targets_gateway,
        targets_hot,
        targets_idl,
        targets_live,
        targets_values,
    )
    for target in module.TARGETS
)
