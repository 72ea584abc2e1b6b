"""The cluster's decision who serves JetStream's API under a prefix (ADR 98).

Rules: there is at most one decision per prefix, in the cluster image, and a later one names the one that it replaces.
Evidence counts only if a broker gathered it after the decision that asked for it (`since`).

    (none) ──a broker wants to serve──▶ WAITING ──all live brokers have evidence, and want to──▶ TAKEN
                                          ▲ │ ▲                                              │ │
               an operator takes it back  │ │ └────────a broker does not want to─────────────┘ │
                                          │ └─────another service answers─────┐               │
                                       WITHDRAWN ◀────────────────────────────┴───────────────┘
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.base.ids import BrokerId

WHY_CHARS_MAX = 256
"""Longest reason of a decision."""
PREFIXES_MAX = 16
"""Most prefixes with a decision. A domain whose name brokers no longer have is forgotten."""


class ApiState(StrEnum):
    """State of a prefix."""

    WAITING = "waiting"  # not served until every live broker has evidence that no other service has it
    TAKEN = "taken"  # served
    WITHDRAWN = "withdrawn"  # not served, for another service answers there; only an operator takes it back
    FORGOTTEN = "forgotten"  # no broker wants to serve it: the decision is removed


class ApiDecision(msgspec.Struct, frozen=True, array_like=True):
    """The decision on one prefix."""

    prefix: str  # with its last dot: `$JS.API.`
    state: ApiState
    index: int  # of the command
    since: int  # index of the decision that asked for evidence; evidence from before does not count
    at_us: int
    why: str = ""
    broker_id: BrokerId = BrokerId(0)  # whose evidence or setting led to it; 0: no single one
    by: str = ""  # the user who asked for it; "": none, or authentication was off
    held_back_by: tuple[BrokerId, ...] = ()  # brokers that do not want to serve it, while WAITING
