"""The report of a batch of seeds: its counters, and whether each of them is above zero.

Rules: A simulation that meets no trouble proves nothing. So every seed has a minimum of operations and faults, and in a
batch of BATCH_SEEDS_MIN seeds or more none of the required counters may be zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.testing.simulation.planned_faults import AIMED, Ill
from tests.sim.models.streams import WAYS
from tests.sim.plan.plan import CLUSTER_ONLY
from tests.sim.run.world import RunResult

BATCH_SEEDS_MIN = 100
SEED_OPERATIONS_MIN = 2_000
SEED_FAULTS_MIN = 20

_ALWAYS = (
    "acks",
    "duplicates",
    "duplicates that were looked up",
    "acks that did not come",
    "no responders",
    "refused messages",
    "refusals that are held",
    "appends",
    "repeated appends",
    "rows read",
    "compressed batches read",
    "deleted streams",
    "process crashes",
    "power cuts",
    "clean stops",
    "failed starts",
    "pauses",
    "nats losses",
    "recovered logs",
    "segments written anew",
    "passes of scrubbers",
    "rows that compaction took",
    "tombstones that went",
    "offsets committed",
    "fenced commits",
    "partitions that changed hands",
    "published pieces",
    "pieces that were there",
    "killed drivers",
    "times that staged rows went",
    "batches that were looked at",
    "messages in turn",
    "logins",
    "refused logins",
    "requests of users",
    "denied requests",
    "appends of users",
    "groups that did not move",
    "rotated secrets",
    "change_rules",
    "delete_user",
    "audits",
    "alterations that are told",
    "rows put",
    "rows compared with their source",
    "killed importers",
    "registered schemas",
    "schemas that were there",
    "refused schemas",
    "forgotten patterns",
    "lists of schemas",
    "texts of schemas",
    "deleted streams with schemas",
    "added companion logs",
    "marks",
    "added logs of consumers",
    "rows of consumers",
    "logs of consumers taken over",
    "refused rows of consumers",
    "folds behind removed marks",
    "reads of marked streams",
    "reads of streams with a limit by subject",
    "decisions by a limit by subject",
    "last messages",
    "deleted streams with marks",
    "acked batches",
    "refused batches",
    "stored batches",
    "messages as expected",
    "messages not as expected",
    "messages that a subject may have",
    "messages that replace others",
    "times that a log of replaced ones was full",
    "messages that a rollup replaced",
    "messages beyond a limit",
    "appends beyond a limit",
    "times that a log was full",
    "deleted messages",
    "checked messages",
    "messages that do not fit",
    "alterations of durability",
    "rests",
    "failed logs",
    "fenced logs",
    "look-ups answered",
    "batch look-ups",
    "messages of ordered readers",
    "counts in quiet times",
    "deleted readers",
    "messages deleted through the API",
    "streams deleted through the API",
    "writers that won",
)
_ALONE = ("readers sent back",)  # in a cluster readers lose messages too rarely
_IN_A_CLUSTER = (
    "elections",
    "leader changes",
    "truncations",
    "isr changes",
    "fenced requests",
    "unclean starts",
    "replaced disks",
    "mended logs",
    "damaged ends",
    "replicas shortened by damage",
    "refused older copies",
    "requests that were not judged",
    "marks beside a proposal",
)


def required(brokers: int) -> tuple[str, ...]:
    """Return the counters that must not be zero in a batch."""
    ills = [f"fault: {ill}" for ill in Ill if brokers > 1 or ill not in CLUSTER_ONLY]
    struck = [f"struck: {ill}" for ill in Ill if brokers > 1 and ill in AIMED]  # the targeted ones
    ways = [f"split by {way['partition_by']}" for way in WAYS]
    return (*_ALWAYS, *ways, *(_IN_A_CLUSTER if brokers > 1 else _ALONE), *ills, *struck)


class Report:
    """The totals of a batch."""

    def __init__(self, brokers: int) -> None:
        self.failures: list[RunResult] = []
        self.seeds = 0
        self._brokers = brokers
        self._counters: Counter[str] = Counter()
        self._simulated_us = 0
        self._operations = self._faults = 0
        self._mistakes: list[str] = []

    def add(self, result: RunResult) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self._counters.update(result.counters)
        self._simulated_us += result.simulated_us
        self._operations += result.operations
        self._faults += result.faults
        if result.error:
            self.failures.append(result)
        elif result.operations < SEED_OPERATIONS_MIN or result.faults < SEED_FAULTS_MIN:
            text = f"{result.operations} operations and {result.faults} faults are too few"
            self._mistakes.append(f"seed {result.seed}: {text}")

    def mistakes(self) -> list[str]:
        """Return what is wrong with the batch itself, apart from failed seeds."""
        found = list(self._mistakes)
        if self.seeds >= BATCH_SEEDS_MIN:
            never = [name for name in required(self._brokers) if not self._counters[name]]
            found += [f"it never happened in {self.seeds} seeds: {name}" for name in never]
        return found

    def lines(self, seconds: float) -> Iterable[str]:
        """Return the lines of the table; `seconds` is the duration of the batch."""
        simulated_s = self._simulated_us / 1e6
        yield f"{self.seeds} seeds, {self._operations} operations, {self._faults} faults"
        yield f"{simulated_s:.0f} simulated seconds in {seconds:.0f} s: {simulated_s / max(seconds, 1e-9):.0f} a second"
        width = max(map(len, self._counters), default=0)
        for name in sorted(self._counters):
            yield f"  {name:<{width}} {self._counters[name]:>12}"
