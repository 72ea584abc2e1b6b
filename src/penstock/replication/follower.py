"""Follower side of one partition: handles the leader's news.

Rules: nothing is appended before the leader has found the end of this log in its own history, in this epoch. News count
only in their own epoch, and batches only once each time the partition was named. The high watermark (`committed_end`)
is the leader's, as far as this log reaches, never this log's end; it stays while this broker's metadata is older than
what the leader decides by. While the log is cut it is not named, so no news come.

| state       | agrees   | diverges   | starts later | overlaps   | cut         | fails  | follows     | mended      |
|-------------|----------|------------|--------------|------------|-------------|--------|-------------|-------------|
| RECONCILING | FETCHING | TRUNCATING | RESETTING    | TRUNCATING |             |        | RECONCILING |             |
| FETCHING    | FETCHING | TRUNCATING | RESETTING    | TRUNCATING |             |        | RECONCILING |             |
| TRUNCATING  |          |            |              |            | RECONCILING | FAILED | TRUNCATING  |             |
| RESETTING   |          |            |              |            | RECONCILING | FAILED | RESETTING   |             |
| FAILED      |          |            |              |            |             |        | FAILED      | RECONCILING |

`starts later`: the leader's next batch does not begin at this log's end (`replica_start`: the base of the batch that
holds the leader's `log_start`, whose first rows are not to be read); or the logs diverge below the start of either.
`overlaps`: the leader's first batch begins before this log ends: the leader's cleaner merged batches, or this log
begins inside one. Those batches are put back as soon as the cut is done (`refilled`), so that readers never see less
than before. `cut`, `fails`: the result of a truncation or a reset. `follows`: another leadership has begun.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionKey
from penstock.messages import FetchPosition, ReplicaNews
from penstock.replication import rules
from penstock.replication.freshness import Freshness
from penstock.replication.rules import EpochEnd


class FollowedLog(rules.EpochLineage, Protocol):
    """The log of a follower, as this module uses it."""

    @property
    def log_start(self) -> int:
        """The first offset of the log."""

    @property
    def log_end(self) -> int:
        """The log end offset."""

    @property
    def flushed_end(self) -> int:
        """The end of what is on the disk."""

    @property
    def last_epoch(self) -> int:
        """The epoch of its last batch; 0 without a batch."""


class FollowState(StrEnum):
    """The state of a follower; see the module's table."""

    RECONCILING = "reconciling"
    FETCHING = "fetching"
    TRUNCATING = "truncating"
    RESETTING = "resetting"
    FAILED = "failed"


class _On(StrEnum):
    AGREES = "agrees"
    DIVERGES = "diverges"
    STARTS_LATER = "starts_later"
    OVERLAPS = "overlaps"
    CUT = "cut"
    CUT_FAILED = "cut_failed"
    FOLLOWS = "follows"
    MENDED = "mended"


_ASKING = {
    _On.AGREES: FollowState.FETCHING,
    _On.DIVERGES: FollowState.TRUNCATING,
    _On.STARTS_LATER: FollowState.RESETTING,
    _On.OVERLAPS: FollowState.TRUNCATING,
    _On.FOLLOWS: FollowState.RECONCILING,
}
_CUTTING = {_On.CUT: FollowState.RECONCILING, _On.CUT_FAILED: FollowState.FAILED}
_NEXT = MappingProxyType(
    {
        FollowState.RECONCILING: _ASKING,
        FollowState.FETCHING: _ASKING,
        FollowState.TRUNCATING: {**_CUTTING, _On.FOLLOWS: FollowState.TRUNCATING},
        FollowState.RESETTING: {**_CUTTING, _On.FOLLOWS: FollowState.RESETTING},
        FollowState.FAILED: {_On.FOLLOWS: FollowState.FAILED, _On.MENDED: FollowState.RECONCILING},
    }
)


class LogOrders(NamedTuple):
    """Work to do on the log, in this order; at most one of the first three."""

    append: bool = False  # the batches that came with the news; then `Following.ends`
    truncate: Offset | None = None  # then `Following.cut` or `cut_failed`
    reset: Offset | None = None  # to an empty log that begins there; then as after `truncate`
    error: str = ""  # the leader's error code: retry later
    cuts_committed: bool = False  # readers may have seen what is cut (unclean election)


class NewEnds(NamedTuple):
    """The ends that moved; None: unchanged."""

    committed_end: Offset | None = None
    log_start: Offset | None = None  # of the leader: `Log.raise_start`


class _Overlapped(NamedTuple):
    """The state in which overlapping batches arrived."""

    leader_epoch: LeaderEpoch
    shown_end: int  # committed end shown to readers


_NOTHING = LogOrders()


class Following:
    """One partition that this broker follows, across leaderships."""

    __slots__ = (
        "_is_asked", "_is_late", "_leader_committed_end", "_leader_log_start", "_overlapped", "committed_end",
        "freshness", "image_index", "is_in_sync", "is_observer", "key", "leader", "leader_epoch", "log",
        "needed_index", "state", "tells_flushes", "trouble",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        log: FollowedLog,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        *,
        committed_end: int = 0,
        fresh_us: int | None = None,
        is_late: bool = False,
    ) -> None:
        self.key = key
        self.log = log
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.state = FollowState.RECONCILING
        self.committed_end = Offset(min(committed_end, log.log_end))  # from the checkpoint
        # Set by the caller from each metadata image:
        self.is_in_sync = False  # a member of the ISR
        self.tells_flushes = False  # commits depend on this broker's disk
        self.is_observer = False  # a read replica: its flushed end is not reported
        self.image_index = 0  # the last metadata command that was applied here
        self.needed_index = 0  # the one from which on this broker knows which rows to show, by its leader
        self.freshness = Freshness(fresh_us)  # of the data shown to readers here
        self.trouble = ""  # why it is stalled and retried later
        self._is_asked = False
        self._is_late = is_late  # an earlier leader had committed more, and the present one has not shown all yet
        self._leader_committed_end = 0
        self._leader_log_start = 0
        self._overlapped = _Overlapped(leader_epoch, 0)

    @property
    def may_ask(self) -> bool:
        """True if the log is idle, so that its end can be named."""
        return self.state in (FollowState.RECONCILING, FollowState.FETCHING)

    @property
    def is_behind(self) -> bool:
        """True if this broker's metadata is too old to tell which of the leader's rows readers may be shown."""
        return self.image_index < self.needed_index

    @property
    def reports_flushes(self) -> bool:
        """True if the leader waits for this broker's flushed end: for commits, or before this replica joins the ISR."""
        return not self.is_observer and (self.tells_flushes or not self.is_in_sync)

    @property
    def lags(self) -> bool:
        """True if the leader, or one before, is known to have committed more than is committed here."""
        is_late = self._is_late and not self.freshness.is_empty
        return is_late or self.committed_end < self._leader_committed_end

    @property
    def lost_from(self) -> int:
        """Offset from which on nothing that earlier leaders wrote is left; OFFSET_MAX: unknown, or the log says it by
        its epochs, as it has a batch of the present one.
        """
        log = self.log
        if log.last_epoch >= self.leader_epoch:
            return limits.OFFSET_MAX
        is_whole = self.state is FollowState.FETCHING and log.log_end >= self._leader_committed_end
        is_empty = not log.log_end and self.freshness.is_empty
        return log.log_end if is_empty or (is_whole and self.freshness.is_settled) else limits.OFFSET_MAX

    def follow(self, leader: BrokerId, leader_epoch: LeaderEpoch) -> None:
        """Follow another leadership; ends reported by the last one are void."""
        assert leader_epoch > self.leader_epoch, (self.key, leader_epoch, self.leader_epoch)
        self._is_late = self.lags
        self.leader, self.leader_epoch = leader, leader_epoch
        self.trouble = ""
        self._leader_committed_end = self._leader_log_start = self.needed_index = 0
        self.unasked()
        self._on(_On.FOLLOWS)

    def position(self) -> FetchPosition:
        """Return the log's position for the request; the leader's next answer counts."""
        assert self.may_ask, self.state
        self._is_asked = True
        log = self.log
        return FetchPosition(
            *self.key,
            self.leader_epoch,
            Offset(log.log_end),
            Offset(log.flushed_end),
            LeaderEpoch(log.last_epoch),
        )

    def unasked(self) -> None:
        """The session ended, and with it what the leader knew of this position."""
        self._is_asked = False

    def news(self, news: ReplicaNews, made_us: int = 0) -> LogOrders:
        """Handle the leader's news of an answer made at `made_us`; return the work to do."""
        if news.leader_epoch != self.leader_epoch or not self.may_ask:
            return _NOTHING
        if not self._is_asked and self.state is FollowState.RECONCILING:
            return _NOTHING  # of a log end that is outdated
        if news.error:
            self.freshness.lose()
            self._is_asked = False
            return LogOrders(error=news.error)
        if news.diverging is not None:
            epoch_end = EpochEnd(news.diverging.leader_epoch, news.diverging.end_offset)
            return self._diverges(epoch_end, news.log_start) if self._is_asked else _NOTHING
        if news.replica_start:
            return self._starts_later(news.replica_start) if self._is_asked else _NOTHING
        self._on(_On.AGREES)
        self.trouble = ""
        self._leader_committed_end = max(self._leader_committed_end, news.committed_end)
        self.freshness.leader_end_reported(news.committed_end, self.committed_end, made_us, is_settled=news.is_settled)
        self._leader_log_start = max(self._leader_log_start, news.log_start)
        self.needed_index = max(self.needed_index, news.image_index)
        if news.size_bytes and self._is_asked:
            self._is_asked = False
            return LogOrders(append=True)
        return _NOTHING

    def _starts_later(self, replica_start: int) -> LogOrders:
        if replica_start <= self.log.log_end:  # contradictory answer
            self._is_asked = False
            return LogOrders(error="bad_request")
        return self._cut(_On.STARTS_LATER, reset=replica_start)

    def _diverges(self, leader: EpochEnd, leader_log_start: int) -> LogOrders:
        end = rules.truncation_end(leader, self.log)
        if self.log.log_end <= leader_log_start:
            return self._cut(_On.STARTS_LATER, reset=leader_log_start)
        if end >= self.log.log_end:  # contradictory answer: a divergence must cut something
            self._is_asked = False
            return LogOrders(error="bad_request")
        if end < max(self.log.log_start, leader_log_start):  # nothing below is retained anyway
            return self._cut(_On.STARTS_LATER, reset=leader_log_start)
        return self._cut(_On.DIVERGES, truncate=end)

    def _cut(self, on: _On, *, truncate: int | None = None, reset: int | None = None) -> LogOrders:
        self._is_asked = False
        self.freshness.lose()
        self._on(on)
        end = truncate if reset is None else reset
        assert end is not None
        cuts_committed = end < self.committed_end
        self.committed_end = Offset(min(self.committed_end, end))
        if reset is None:
            return LogOrders(truncate=Offset(end), cuts_committed=cuts_committed)
        return LogOrders(reset=Offset(end), cuts_committed=cuts_committed)

    def overlaps(self, base_offset: int) -> LogOrders:
        """Cut the log: the received batches begin at `base_offset`, inside it. Then append them and call `refilled`."""
        overlapped = _Overlapped(self.leader_epoch, self.committed_end)
        if base_offset < self.log.log_start:
            orders = self._cut(_On.STARTS_LATER, reset=base_offset)
        else:
            orders = self._cut(_On.OVERLAPS, truncate=base_offset)
        self._overlapped = overlapped
        return orders._replace(cuts_committed=False)  # those batches restore it

    def ends(self) -> NewEnds:
        """Return the ends that moved with the latest news, once its batches are in the log."""
        log, committed_end, log_start = self.log, None, None
        end = rules.follower_committed_end(self._leader_committed_end, log.log_end)
        if self.state is FollowState.FETCHING and end > self.committed_end and not self.is_behind:
            self.committed_end = committed_end = Offset(end)
            self.freshness.shown(end)
        is_told = self.state is FollowState.FETCHING and self.freshness.is_settled
        if self._is_late and is_told and end >= self._leader_committed_end:
            self._is_late = self.is_behind
        start = min(self._leader_log_start, self.committed_end)
        if start > log.log_start:
            log_start = Offset(start)
        return NewEnds(committed_end, log_start)

    def cut(self) -> None:
        """The truncation or the reset is done."""
        self._on(_On.CUT)
        # Only now: before the cut the log still had another history. The cut is at the begin of a batch, so maybe
        # further back.
        self.committed_end = Offset(min(max(self.committed_end, self.log.log_start), self.log.log_end))

    def refilled(self) -> NewEnds:
        """The batches of `overlaps` are in the log after the cut: everything that readers have seen is there again."""
        leader_epoch, shown_end = self._overlapped
        if self.state is FollowState.RECONCILING and leader_epoch == self.leader_epoch:
            self._on(_On.AGREES)  # it is the leader's own log, up to this log's end
        self.committed_end = max(self.committed_end, Offset(min(shown_end, self.log.log_end)))
        log_start = self.ends().log_start
        return NewEnds(self.committed_end, log_start)

    def cut_failed(self) -> None:
        """The cut failed: the log is left alone until it is repaired, usually by a restart."""
        self._on(_On.CUT_FAILED)

    def mended(self) -> None:
        """The log can be written again."""
        self._on(_On.MENDED)

    def _on(self, event: _On) -> None:
        self.state = _NEXT[self.state][event]
