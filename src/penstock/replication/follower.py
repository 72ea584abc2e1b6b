"""One partition that follows: what comes of the leader's news.

Rules: nothing is appended before the leader has found the end of this log in its own history, in this epoch. News count
only in the epoch that they are of, and batches only once for each time the partition was named. `committed_end` is the
leader's, as far as this log has it, never this log's end. While the log is cut it is not named, so no news come.

| state       | agrees   | diverges   | starts later | overlaps   | cut         | fails  | follows     | mended      |
|-------------|----------|------------|--------------|------------|-------------|--------|-------------|-------------|
| RECONCILING | FETCHING | TRUNCATING | RESETTING    | TRUNCATING |             |        | RECONCILING |             |
| FETCHING    | FETCHING | TRUNCATING | RESETTING    | TRUNCATING |             |        | RECONCILING |             |
| TRUNCATING  |          |            |              |            | RECONCILING | FAILED | TRUNCATING  |             |
| RESETTING   |          |            |              |            | RECONCILING | FAILED | RESETTING   |             |
| FAILED      |          |            |              |            |             |        | FAILED      | RECONCILING |

`starts later`: what the leader has next does not begin where this log ends (`replica_start`: the base of the batch that
holds the leader's `log_start`, whose first rows are not to be read); or the logs diverge below the start of either.
`overlaps`: the leader's first batch begins before this log ends: its cleaner merged some, or this log begins inside it.
Those batches are put back as soon as the cut is done (`refilled`), so that readers never see less than before.
`cut`, `fails`: how a truncation or a reset ended. `follows`: another leadership has begun.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionKey
from penstock.messages import FetchPosition, ReplicaNews
from penstock.replication import rules
from penstock.replication.freshness import Freshness
from penstock.replication.rules import EpochEnd


class FollowedLog(rules.Lineage, Protocol):
    """What is asked of the log of a follower."""

    @property
    def log_start(self) -> int:
        """Its first offset."""

    @property
    def log_end(self) -> int:
        """The end of what it has."""

    @property
    def flushed_end(self) -> int:
        """The end of what it has on the disk."""

    @property
    def last_epoch(self) -> int:
        """The epoch of its last batch, 0 if it has none."""


class FollowState(StrEnum):
    """What a follower is about."""

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


class Orders(NamedTuple):
    """What is to be done with the log, in this order; at most one of the first three."""

    append: bool = False  # the batches that came with the news; then `Following.ends`
    truncate: Offset | None = None  # then `Following.cut` or `cut_failed`
    reset: Offset | None = None  # to an empty log that begins there; then the same
    error: str = ""  # the leader's: ask again later
    cuts_committed: bool = False  # readers may have seen what is cut: an unclean election


class NewEnds(NamedTuple):
    """What has moved; None: it has not."""

    committed_end: Offset | None = None
    log_start: Offset | None = None  # of the leader: `Log.follow_start`


class _Overlapped(NamedTuple):
    """What was known when batches came that overlapped."""

    leader_epoch: LeaderEpoch
    shown_end: int  # to readers


_NOTHING = Orders()


class Following:
    """One partition that this broker follows, from one leadership to the next."""

    __slots__ = (
        "_is_asked", "_leader_committed_end", "_leader_log_start", "_overlapped", "committed_end", "freshness",
        "has_rivals", "is_in_sync", "is_observer", "key", "leader", "leader_epoch", "log", "state", "tells_flushes",
        "trouble",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        log: FollowedLog,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        *,
        committed_end: int = 0,
        is_in_sync: bool = False,
        tells_flushes: bool = False,
        is_observer: bool = False,
        has_rivals: bool = True,
        fresh_us: int | None = None,
    ) -> None:
        self.key = key
        self.log = log
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.state = FollowState.RECONCILING
        self.committed_end = Offset(min(committed_end, log.log_end))  # as it was checkpointed
        self.is_in_sync = is_in_sync  # a member of the ISR, by the image
        self.tells_flushes = tells_flushes  # commits depend on this broker's disk
        self.is_observer = is_observer  # nobody wants to know how far its disk is
        self.has_rivals = has_rivals  # others may lead it in its leader's place
        self.freshness = Freshness(fresh_us)  # of what readers are shown here
        self.trouble = ""  # why it stands still, and is tried again later
        self._is_asked = False
        self._leader_committed_end = 0
        self._leader_log_start = 0
        self._overlapped = _Overlapped(leader_epoch, 0)

    @property
    def may_ask(self) -> bool:
        """Whether the log stands still, so that its end can be named."""
        return self.state in (FollowState.RECONCILING, FollowState.FETCHING)

    def follow(self, leader: BrokerId, leader_epoch: LeaderEpoch) -> None:
        """Another leadership has begun: what the last one said of ends counts no more."""
        assert leader_epoch > self.leader_epoch, (self.key, leader_epoch, self.leader_epoch)
        self.leader, self.leader_epoch = leader, leader_epoch
        self.trouble = ""
        self._leader_committed_end = self._leader_log_start = 0
        self.unasked()
        self._on(_On.FOLLOWS)

    def position(self) -> FetchPosition:
        """Where the log stands, to be named to the leader: its next answer counts."""
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
        """The leader has forgotten what was named: its session is over."""
        self._is_asked = False

    def news(self, news: ReplicaNews, made_us: int = 0) -> Orders:
        """What the leader says, in an answer that was made at `made_us`, and what is to be done because of it."""
        if news.leader_epoch != self.leader_epoch or not self.may_ask:
            return _NOTHING
        if not self._is_asked and self.state is FollowState.RECONCILING:
            return _NOTHING  # of an end that this log no longer has
        if news.error:
            self.freshness.lose()
            self._is_asked = False
            return Orders(error=news.error)
        if news.diverging is not None:
            epoch_end = EpochEnd(news.diverging.leader_epoch, news.diverging.end_offset)
            return self._diverges(epoch_end, news.log_start) if self._is_asked else _NOTHING
        if news.replica_start:
            return self._starts_later(news.replica_start) if self._is_asked else _NOTHING
        self._on(_On.AGREES)
        self.trouble = ""
        self._leader_committed_end = max(self._leader_committed_end, news.committed_end)
        self.freshness.told(news.committed_end, self.committed_end, made_us, is_settled=news.is_settled)
        self._leader_log_start = max(self._leader_log_start, news.log_start)
        if news.size_bytes and self._is_asked:
            self._is_asked = False
            return Orders(append=True)
        return _NOTHING

    def _starts_later(self, replica_start: int) -> Orders:
        if replica_start <= self.log.log_end:  # the leader contradicts itself
            self._is_asked = False
            return Orders(error="bad_request")
        return self._cut(_On.STARTS_LATER, reset=replica_start)

    def _diverges(self, leader: EpochEnd, leader_log_start: int) -> Orders:
        end = rules.truncation_end(leader, self.log)
        if self.log.log_end <= leader_log_start:
            return self._cut(_On.STARTS_LATER, reset=leader_log_start)
        if end >= self.log.log_end:  # the leader contradicts itself: an answer that diverges cuts something
            self._is_asked = False
            return Orders(error="bad_request")
        if end < max(self.log.log_start, leader_log_start):  # below that, nothing is kept anyway
            return self._cut(_On.STARTS_LATER, reset=leader_log_start)
        return self._cut(_On.DIVERGES, truncate=end)

    def _cut(self, on: _On, *, truncate: int | None = None, reset: int | None = None) -> Orders:
        self._is_asked = False
        self.freshness.lose()
        self._on(on)
        end = truncate if reset is None else reset
        assert end is not None
        cuts_committed = end < self.committed_end
        self.committed_end = Offset(min(self.committed_end, end))
        if reset is None:
            return Orders(truncate=Offset(end), cuts_committed=cuts_committed)
        return Orders(reset=Offset(end), cuts_committed=cuts_committed)

    def overlaps(self, base_offset: int) -> Orders:
        """The batches that came begin at `base_offset`, inside this log. After the cut: `append` those, `refilled`."""
        overlapped = _Overlapped(self.leader_epoch, self.committed_end)
        if base_offset < self.log.log_start:
            orders = self._cut(_On.STARTS_LATER, reset=base_offset)
        else:
            orders = self._cut(_On.OVERLAPS, truncate=base_offset)
        self._overlapped = overlapped
        return orders._replace(cuts_committed=False)  # those batches have it

    def ends(self) -> NewEnds:
        """What moved by the latest news, once its batches are in the log."""
        log, committed_end, log_start = self.log, None, None
        end = rules.follower_committed_end(self._leader_committed_end, log.log_end)
        if self.state is FollowState.FETCHING and end > self.committed_end:
            self.committed_end = committed_end = Offset(end)
            self.freshness.shown(end)
        start = min(self._leader_log_start, self.committed_end)
        if start > log.log_start:
            log_start = Offset(start)
        return NewEnds(committed_end, log_start)

    def cut(self) -> None:
        """The truncation or the reset is done."""
        self._on(_On.CUT)
        # Not before: it still had another past. The cut is where a batch begins, so it may be further back.
        self.committed_end = Offset(min(max(self.committed_end, self.log.log_start), self.log.log_end))

    def refilled(self) -> NewEnds:
        """The batches of `overlaps` are in the log, behind the cut: with them what readers have seen is there again."""
        leader_epoch, shown_end = self._overlapped
        if self.state is FollowState.RECONCILING and leader_epoch == self.leader_epoch:
            self._on(_On.AGREES)  # it is the leader's own log, up to where this one ends
        self.committed_end = max(self.committed_end, Offset(min(shown_end, self.log.log_end)))
        log_start = self.ends().log_start
        return NewEnds(self.committed_end, log_start)

    def cut_failed(self) -> None:
        """It failed: the log is left alone until it is mended, by a restart most likely."""
        self._on(_On.CUT_FAILED)

    def mended(self) -> None:
        """The log can be written again."""
        self._on(_On.MENDED)

    def _on(self, event: _On) -> None:
        self.state = _NEXT[self.state][event]
