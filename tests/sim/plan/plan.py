"""The plan of a seed: client operations and faults with their times, drawn before anything runs.

Rules: A plan is data. If parts of it are left out, the rest still happens at the same times: so a failing seed is
shrunk by leaving out faults and operations.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import NamedTuple

from penstock.testing.simulation.planned_faults import AIMED, Ill, PlannedFault

OPERATIONS = 2_100
FAULTS_MIN = 24
FAULTS_MAX = 40
SECONDS_MIN = 45
SECONDS_MAX = 90
TRUNCATIONS_MAX = 60
KEYED_OPERATIONS = 400
SPLIT_OPERATIONS = 400
GROUP_OPERATIONS = 120
RUN_OPERATIONS = 90
GROW_OPERATIONS = 3
USER_OPERATIONS = 700
IMPORT_OPERATIONS = 60
SCHEMA_OPERATIONS = 240
MARK_OPERATIONS = 400
CONSUME_OPERATIONS = 400
EXPECT_OPERATIONS = 360
BATCH_OPERATIONS = 200
LEVEL_OPERATIONS = 80
API_OPERATIONS = 400
DURABILITY_OPERATIONS = 6
SUBJECT_OPERATIONS = 12
LAST_OPERATIONS = 100  # of each slot
LATEST_OPERATIONS = 60
LEASE_FAULTS = 6
INDEX_FAULTS = 12
REST_US = 14_000_000  # longer than a follower may lag before it leaves the ISR
DURABILITY_SLOT = 1  # its promises are those of `os`, the weakest durability
_WITH_USERS = 1 / 3  # of all seeds; an import, schemas, marks and levels are drawn separately with the same share


class Act(StrEnum):
    """An act of a client."""

    PUBLISH = "publish"
    APPEND = "append"
    FETCH = "fetch"
    REWIND = "rewind"
    OFFSETS = "offsets"
    GET = "get"
    METADATA = "metadata"
    STATUS = "status"
    ALTER = "alter"
    RECREATE = "recreate"
    TRUNCATE = "truncate"
    MEMBER = "member"  # of a group: joins, leaves, is killed, or is silent for a while
    COMMIT = "commit"  # by the consumer of a group without members
    POSITION = "position"  # asks for the committed offsets of a group
    RUN = "run"  # a Spark driver stages rows and publishes them
    GROW = "grow"  # adds partitions to a stream
    DURABILITY = "durability"  # alters the durability of a stream
    REST = "rest"  # after the end of all faults: nobody does anything for REST_US
    ASK = "ask"  # a user with few permissions sends a request
    RULE = "rule"  # an administrator grants or revokes rules, rotates a secret, deletes a user
    SCHEMA = "schema"  # a schema is registered or forgotten, or values are published that it checks
    MARK = "mark"  # marks, messages and reads of the stream with companion logs
    CONSUME = "consume"  # rows of consumers, and messages, of the stream with logs of consumers
    EXPECT = "expect"  # writers of the same subjects, with expectations; deletions; streams that get full
    BATCH = "batch"  # publishers of atomic batches
    LEVEL = "level"  # a broker becomes another version, the feature level is raised, or what is new is tried
    SUBJECTS = "subjects"  # of a stream are added or removed
    LAST = "last"  # message of a subject is looked up
    LATEST = "latest"  # messages are published, and the end of the log is looked up, again and again for a moment
    WORK = "work"  # clients of consumers with acks, and what is asked about these
    API = "api"  # clients of JetStream's API read, write, and make streams
    IMPORT = "import"  # a program imports rows with their offsets and timestamps, is killed, or checks what is stored


_ACTS = (
    (Act.PUBLISH, 58),
    (Act.FETCH, 27),
    (Act.APPEND, 5),
    (Act.OFFSETS, 3),
    (Act.REWIND, 2),
    (Act.GET, 2),
    (Act.METADATA, 1),
    (Act.STATUS, 1),
    (Act.ALTER, 1),
    (Act.RECREATE, 0),
    (Act.TRUNCATE, 0),
)

_GROUP_ACTS = (
    (Act.MEMBER, 60),
    (Act.COMMIT, 40),
    (Act.POSITION, 20),
)

_RUN_ACTS = ((Act.RUN, 1),)

_GROW_ACTS = ((Act.GROW, 1),)

_DURABILITY_ACTS = ((Act.DURABILITY, 1),)

_SUBJECT_ACTS = ((Act.SUBJECTS, 1),)

_LAST_ACTS = ((Act.LAST, 1),)

_LATEST_ACTS = ((Act.LATEST, 1),)

_USER_ACTS = (
    (Act.ASK, 9),
    (Act.RULE, 2),
)

_IMPORT_ACTS = ((Act.IMPORT, 1),)

_SCHEMA_ACTS = ((Act.SCHEMA, 1),)

_MARK_ACTS = ((Act.MARK, 1),)

_CONSUME_ACTS = ((Act.CONSUME, 1),)
_EXPECT_ACTS = ((Act.EXPECT, 1),)
_BATCH_ACTS = ((Act.BATCH, 1),)
_LEVEL_ACTS = ((Act.LEVEL, 1),)
_API_ACTS = ((Act.API, 1),)

_KEYED_ACTS = (
    (Act.PUBLISH, 100),
    (Act.APPEND, 40),
    (Act.FETCH, 44),
    (Act.REWIND, 8),
    (Act.GET, 4),
    (Act.OFFSETS, 2),
    (Act.ALTER, 1),
    (Act.TRUNCATE, 1),
)

_SPLIT_ACTS = (
    (Act.PUBLISH, 100),
    (Act.FETCH, 60),
    (Act.APPEND, 6),
    (Act.REWIND, 6),
    (Act.GET, 4),
    (Act.OFFSETS, 2),
    (Act.ALTER, 1),
)


_ILLS = (
    (Ill.CRASH, 10),
    (Ill.POWER_CUT, 8),
    (Ill.POWER_CUT_WITHIN, 12),
    (Ill.ALL_LOSE_POWER, 3),
    (Ill.CLEAN_RESTART, 6),
    (Ill.PAUSE, 8),
    (Ill.CLOCK_STEP, 8),
    (Ill.SLOW_DISK, 8),
    (Ill.FULL_DISK, 6),
    (Ill.FAILING_SYNC, 6),
    (Ill.FLIPPED_BIT, 8),
    (Ill.EMPTY_DISK, 3),
    (Ill.NATS_LOST, 8),
    (Ill.NATS_RESTART, 4),
    (Ill.ACKS_LOST, 5),
    (Ill.RESET, 10),
    (Ill.PARTITION, 16),
    (Ill.SLOW_NETWORK, 4),
    (Ill.SHRINK_IN_DOUBT, 8),
    (Ill.JOIN_OF_A_PAST_RUN, 8),
    (Ill.CHANGES_CROSS, 6),
    (Ill.VOTE_THEN_RESTART, 8),
    (Ill.UNEVEN_FAILOVER, 8),
    (Ill.DEPOSED_AND_BACK, 8),
    (Ill.JOINER_BEHIND, 8),
    (Ill.HUNG_SYNC, 5),
    (Ill.NATS_AWAY, 3),
    (Ill.LONG_FULL_DISK, 3),
    (Ill.OLDER_COPY, 4),
    (Ill.ALL_KILLED, 5),
)
_LONG_US = {Ill.HUNG_SYNC: 2_000_000, Ill.NATS_AWAY: 30_000_000, Ill.LONG_FULL_DISK: 60_000_000}  # minimum durations
# A single broker loses everything with its disk, and what is corrupt.
CLUSTER_ONLY = AIMED | {Ill.EMPTY_DISK, Ill.OLDER_COPY, Ill.DAMAGED_END}


class PlannedOperation(NamedTuple):
    """One act. `slot` is the stream; `number` is the act's own random number."""

    at_us: int
    act: Act
    slot: int
    number: int


class RunPlan(NamedTuple):
    """All operations and faults of one run, up to `end_us`; then all faults end."""

    seed: int
    brokers: int
    end_us: int
    operations: tuple[PlannedOperation, ...]
    faults: tuple[PlannedFault, ...]


def _chosen(random: Random, weighted: tuple[tuple[Act, int], ...] | tuple[tuple[Ill, int], ...]) -> Act | Ill:
    left = int(random.random() * sum(weight for _, weight in weighted))
    for one, weight in weighted:
        left -= weight
        if left < 0:
            return one
    raise AssertionError


def make_plan(seed: int, brokers: int, slots: int) -> RunPlan:
    """Draw the plan of a seed. The last three slots: the consumer groups' stream, the compacted and the split one."""
    shared_slot, keyed_slot, split_slot = range(slots - 3, slots)
    slots = keyed_slot
    random = Random(f"{seed} plan")
    end_us = (SECONDS_MIN + int(random.random() * (SECONDS_MAX - SECONDS_MIN))) * 1_000_000
    operations = []
    for _ in range(OPERATIONS):
        act = _chosen(random, _ACTS)
        assert isinstance(act, Act)
        at_us = int(random.random() * end_us)
        operations.append(PlannedOperation(at_us, act, int(random.random() * slots), random.getrandbits(32)))
    recreations = 1 + int(random.random() * 5)
    operations += [
        PlannedOperation(
            int(random.random() * end_us), Act.RECREATE, int(random.random() * slots), random.getrandbits(32)
        )
        for _ in range(recreations)
    ]
    operations += _truncations(seed, end_us, slots)
    operations += _drawn_apart(seed, "keys", end_us, keyed_slot, _KEYED_ACTS, KEYED_OPERATIONS)
    operations += _drawn_apart(seed, "split", end_us, split_slot, _SPLIT_ACTS, SPLIT_OPERATIONS)
    operations += _drawn_apart(seed, "growth", end_us, split_slot, _GROW_ACTS, GROW_OPERATIONS)
    operations += _drawn_apart(seed, "groups", end_us, shared_slot, _GROUP_ACTS, GROUP_OPERATIONS)
    operations += _drawn_apart(seed, "runs", end_us, shared_slot, _RUN_ACTS, RUN_OPERATIONS)
    operations += _drawn_apart(seed, "durability", end_us, DURABILITY_SLOT, _DURABILITY_ACTS, DURABILITY_OPERATIONS)
    if _is_drawn(seed, "with a rest"):
        operations += _rest(seed, end_us)
    if _is_drawn(seed, "with users"):
        operations += _drawn_apart(seed, "users", end_us, 0, _USER_ACTS, USER_OPERATIONS)
    if _is_drawn(seed, "with an import"):
        operations += _drawn_apart(seed, "import", end_us, 0, _IMPORT_ACTS, IMPORT_OPERATIONS)
    has_schemas, has_marks = _is_drawn(seed, "with schemas"), _is_drawn(seed, "with marks")
    if has_schemas:
        operations += _drawn_apart(seed, "schemas", end_us, 0, _SCHEMA_ACTS, SCHEMA_OPERATIONS)
    if has_marks:
        operations += _drawn_apart(seed, "marks", end_us, 0, _MARK_ACTS, MARK_OPERATIONS)
    has_expectations = _is_drawn(seed, "with expectations")
    if has_expectations:
        operations += _drawn_apart(seed, "expectations", end_us, 0, _EXPECT_ACTS, EXPECT_OPERATIONS)
    needs_newest_level = has_schemas or has_marks or has_expectations
    has_levels = _is_drawn(seed, "with upgrades") and not needs_newest_level
    if has_levels:
        operations += _drawn_apart(seed, "levels", end_us, 0, _LEVEL_ACTS, LEVEL_OPERATIONS)
    # It needs the level, and acts as no user.
    has_api = _is_drawn(seed, "with an API") and not has_levels and not _is_drawn(seed, "with users")
    # They need the newest level; a broker with an API takes all rows of consumers for its own.
    if _is_drawn(seed, "with logs of consumers") and not has_levels and not has_api:
        operations += _drawn_apart(seed, "consumers", end_us, 0, _CONSUME_ACTS, CONSUME_OPERATIONS)
    if _is_drawn(seed, "with batches") and not has_levels:  # they need the level
        operations += _drawn_apart(seed, "batches", end_us, 0, _BATCH_ACTS, BATCH_OPERATIONS)
    if has_api:
        operations += _drawn_apart(seed, "API", end_us, 0, _API_ACTS, API_OPERATIONS)
    if _is_drawn(seed, "with subjects"):
        for slot in (0, split_slot):
            operations += _drawn_apart(seed, f"subjects {slot}", end_us, slot, _SUBJECT_ACTS, SUBJECT_OPERATIONS)
    has_lasts = _is_drawn(seed, "with look-ups")
    if has_lasts:
        for slot in range(slots):
            operations += _drawn_apart(seed, f"look-ups {slot}", end_us, slot, _LAST_ACTS, LAST_OPERATIONS)
    faults: list[PlannedFault] = []
    possible = tuple((ill, weight) for ill, weight in _ILLS if brokers > 1 or ill not in CLUSTER_ONLY)
    count = FAULTS_MIN + int(random.random() * (FAULTS_MAX - FAULTS_MIN))
    while len(faults) < count:
        ill = _chosen(random, possible)
        assert isinstance(ill, Ill)
        at_us = int((0.01 + 0.95 * random.random()) * end_us)
        lasts_us = int(100_000 + random.random() ** 3 * 15_000_000)
        if ill is Ill.HUNG_SYNC:
            lasts_us *= 2
        lasts_us = _LONG_US.get(ill, 0) + lasts_us
        broker_id = 1 + int(random.random() * brokers)
        faults.append(PlannedFault(at_us, ill, broker_id, lasts_us, random.getrandbits(32)))
    if has_lasts:
        faults += _faults_drawn_apart(seed, Ill.HARMED_INDEX, end_us, brokers, INDEX_FAULTS)
    if brokers > 1:
        faults += _faults_drawn_apart(seed, Ill.FULL_AND_DEPOSED, end_us, brokers)
        if _is_drawn(seed, "with damaged ends"):
            faults += _faults_drawn_apart(seed, Ill.DAMAGED_END, end_us, brokers)
        if _is_drawn(seed, "with leases"):
            operations += _drawn_apart(seed, "leases", end_us, 0, _LATEST_ACTS, LATEST_OPERATIONS)
            faults += _faults_drawn_apart(seed, Ill.DEPOSED_AND_ASKED, end_us, brokers, LEASE_FAULTS)
    return RunPlan(seed, brokers, end_us, tuple(sorted(operations)), tuple(sorted(faults)))


def _is_drawn(seed: int, what: str) -> bool:
    """True if the seed has an optional load. Drawn separately, so that the plans of other seeds stay unchanged."""
    return Random(f"{seed} {what}").random() < _WITH_USERS


def _truncations(seed: int, end_us: int, slots: int) -> list[PlannedOperation]:
    """Draw some truncations. Drawn separately, so that the rest of the plan stays unchanged."""
    random = Random(f"{seed} truncations")
    return [
        PlannedOperation(
            int(random.random() * end_us), Act.TRUNCATE, int(random.random() * slots), random.getrandbits(32)
        )
        for _ in range(int(random.random() * TRUNCATIONS_MAX))
    ]


def _rest(seed: int, end_us: int) -> list[PlannedOperation]:
    """Draw a rest, with a stream whose durability changes before and after its last messages.

    What a leader waits for then must not come with later messages.
    """
    random = Random(f"{seed} rest")
    acts = [(1_000_000, Act.DURABILITY), (8_000_000, Act.DURABILITY), (8_500_000, Act.REST)]
    acts += [(2_000_000 + int(random.random() * 4_000_000), Act.PUBLISH) for _ in range(8)]
    return [PlannedOperation(end_us + after, act, DURABILITY_SLOT, random.getrandbits(32)) for after, act in acts]


def _faults_drawn_apart(seed: int, ill: Ill, end_us: int, brokers: int, count: int = 2) -> list[PlannedFault]:
    """Draw faults of one kind. Drawn separately, so that the rest of the plan stays unchanged."""
    random = Random(f"{seed} {ill}")
    return [
        PlannedFault(int(random.random() * end_us), ill, 1 + int(random.random() * brokers), 0, random.getrandbits(32))
        for _ in range(count)
    ]


def _drawn_apart(
    seed: int, what: str, end_us: int, slot: int, acts: tuple[tuple[Act, int], ...], count: int
) -> list[PlannedOperation]:
    """Draw operations of one kind. Drawn separately, so that the rest of the plan stays unchanged."""
    random = Random(f"{seed} {what}")
    operations = []
    for _ in range(count):
        act = _chosen(random, acts)
        assert isinstance(act, Act)
        operations.append(PlannedOperation(int(random.random() * end_us), act, slot, random.getrandbits(32)))
    return operations
