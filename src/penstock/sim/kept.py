"""A plan as a file, so that what once failed can be run again: not what its seed comes to by then, but what it was.

Rules: a file holds all that is drawn when a plan is made, each operation and each fault with its moment, its target and
its share of chance, so that a change of how plans are made changes none that is kept. What is drawn while a plan runs
comes from its seed: delays of the network and of disks, and what a power loss leaves. So a change of what the brokers
do, or when, may still have a kept plan pass by what it is kept for, and each bug has a story or a unit test of its own.

    {"seed": 32, "brokers": 3, "end_us": 61000000,
     "shows": "the violation, as it was told", "mended_by": "the subject of the commit",
     "operations": [[at_us, act, slot, number], …],
     "faults": [[at_us, ill, broker_id, lasts_us, number], …]}
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from penstock.sim.clients import SLOTS
from penstock.sim.plan import Fault, Operation, Plan

_FILE_BYTES_MAX = 1 << 20


class PlanFileError(Exception):
    """A file does not hold a plan."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """A plan, what went wrong in it, and the commit that mended that (empty: none yet)."""

    seed: int
    brokers: int
    end_us: int
    shows: str
    mended_by: str
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...]

    def plan(self) -> Plan:
        """What is to be run."""
        return Plan(self.seed, self.brokers, self.end_us, self.operations, self.faults)


def keep(path: Path, plan: Plan, shows: str) -> None:
    """Write a plan to a file that is not there yet: one line for each operation and each fault. OSError."""
    head = {"seed": plan.seed, "brokers": plan.brokers, "end_us": plan.end_us, "shows": shows, "mended_by": ""}
    lines = [f'"{name}": {json.dumps(value)},' for name, value in head.items()]
    lines.append(f'"operations": {_rows(plan.operations)},')
    lines.append(f'"faults": {_rows(plan.faults)}')
    with path.open("x") as file:
        file.write("{\n" + "\n".join(lines) + "\n}\n")


def _rows(rows: tuple[Operation, ...] | tuple[Fault, ...]) -> str:
    return "[\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n]" if rows else "[]"


def load(path: Path) -> Kept:
    """What `keep` wrote. PlanFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise PlanFileError(f"{path} is no plan: it has more than {_FILE_BYTES_MAX} bytes")
        kept = msgspec.json.decode(data, type=Kept)
    except (OSError, msgspec.DecodeError) as error:
        raise PlanFileError(f"{path} is no plan: {error}") from error
    moments = (kept.end_us, *(one.at_us for one in kept.operations), *(one.at_us for one in kept.faults))
    is_whole = (
        kept.brokers >= 1
        and min(moments) >= 0
        and all(0 <= one.slot < SLOTS and one.number >= 0 for one in kept.operations)
        and all(1 <= one.broker_id <= kept.brokers and one.number >= 0 for one in kept.faults)
        and all(one.lasts_us >= 0 for one in kept.faults)
    )
    if not is_whole:
        raise PlanFileError(f"{path} is no plan: a moment, a slot, a broker or a number in it is none that there is")
    return kept
