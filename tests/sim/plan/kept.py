"""Plans as files, so that a failed run can be repeated even after the way that plans are drawn has changed.

Rules: A file holds everything that is drawn when a plan is made: each operation and fault with its time, target and
random number. So a change of plan generation changes no kept plan. What is drawn while a plan runs comes from its seed:
delays of the network and disks, and what a power loss leaves. So a change of the brokers' behaviour or timing may make
a kept plan miss its bug; therefore each bug also has a story or a unit test of its own.

    {"seed": 32, "brokers": 3, "end_us": 61000000,
     "shows": "the violation, as it was told", "mended_by": "the subject of the commit",
     "operations": [[at_us, act, slot, number], …],
     "faults": [[at_us, ill, broker_id, lasts_us, number], …]}
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from penstock.testing.simulation.planned_faults import PlannedFault
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import PlannedOperation, RunPlan

_FILE_BYTES_MAX = 1 << 20


class PlanFileError(Exception):
    """The file does not hold a plan."""


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """A plan, its violation, and the commit that fixed it (empty: not fixed yet)."""

    seed: int
    brokers: int
    end_us: int
    shows: str
    mended_by: str
    operations: tuple[PlannedOperation, ...]
    faults: tuple[PlannedFault, ...]

    def plan(self) -> RunPlan:
        """Return the plan to run."""
        return RunPlan(self.seed, self.brokers, self.end_us, self.operations, self.faults)


def keep(path: Path, plan: RunPlan, shows: str) -> None:
    """Write a plan to a new file: one line for each operation and fault. Raise OSError, also if the file exists."""
    head = {"seed": plan.seed, "brokers": plan.brokers, "end_us": plan.end_us, "shows": shows, "mended_by": ""}
    lines = [f'"{name}": {json.dumps(value)},' for name, value in head.items()]
    lines.append(f'"operations": {_rows(plan.operations)},')
    lines.append(f'"faults": {_rows(plan.faults)}')
    with path.open("x") as file:
        file.write("{\n" + "\n".join(lines) + "\n}\n")


def _rows(rows: tuple[PlannedOperation, ...] | tuple[PlannedFault, ...]) -> str:
    return "[\n  " + ",\n  ".join(map(json.dumps, rows)) + "\n]" if rows else "[]"


def load(path: Path) -> Kept:
    """Read a file that `keep` wrote. Raise PlanFileError."""
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
