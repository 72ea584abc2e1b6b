"""Kinds of faults, and a fault as it is drawn before it happens."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Ill(StrEnum):
    """A fault."""

    CRASH = "crash"
    POWER_CUT = "power cut"
    POWER_CUT_WITHIN = "power cut within"  # in the middle of an action, after so many changes of the disk
    ALL_LOSE_POWER = "all lose power"
    CLEAN_RESTART = "clean restart"
    PAUSE = "pause"
    CLOCK_STEP = "clock step"
    SLOW_DISK = "slow disk"
    FULL_DISK = "full disk"
    LONG_FULL_DISK = "disk full for long"
    FAILING_SYNC = "failing sync"
    HUNG_SYNC = "hung sync"
    FLIPPED_BIT = "flipped bit"
    DAMAGED_END = "damaged end"  # of a log, where only the checkpoint that is torn covers it, beside the end of a run
    HARMED_INDEX = "harmed index"  # of subjects: lost, changed, cut short, or another segment's
    EMPTY_DISK = "empty disk"
    OLDER_COPY = "older copy"  # of the disk: taken when the fault begins, restored when it ends
    ALL_KILLED = "all killed"  # within a moment; sometimes one returns with an empty disk or an older copy
    NATS_LOST = "nats lost"
    NATS_AWAY = "nats away for long"  # for one broker
    NATS_RESTART = "nats restart"
    ACKS_LOST = "acks lost"
    RESET = "reset"  # of the connections between two machines
    PARTITION = "partition"  # nothing gets through in one direction or both
    SLOW_NETWORK = "slow network"
    SHRINK_IN_DOUBT = "shrink in doubt"  # from here on targeted: see `targeted_faults`
    JOIN_OF_A_PAST_RUN = "join of a past run"
    CHANGES_CROSS = "changes cross"
    VOTE_THEN_RESTART = "vote, then restart"
    UNEVEN_FAILOVER = "uneven failover"
    DEPOSED_AND_BACK = "deposed and back"
    JOINER_BEHIND = "joiner behind"
    FULL_AND_DEPOSED = "full and deposed"
    DEPOSED_AND_ASKED = "deposed and asked"


AIMED = frozenset(
    {
        Ill.SHRINK_IN_DOUBT,
        Ill.JOIN_OF_A_PAST_RUN,
        Ill.CHANGES_CROSS,
        Ill.VOTE_THEN_RESTART,
        Ill.UNEVEN_FAILOVER,
        Ill.DEPOSED_AND_BACK,
        Ill.JOINER_BEHIND,
        Ill.FULL_AND_DEPOSED,
        Ill.DEPOSED_AND_ASKED,
    }
)


class PlannedFault(NamedTuple):
    """One fault with a duration; `number` is its own random number."""

    at_us: int
    ill: Ill
    broker_id: int
    lasts_us: int
    number: int
