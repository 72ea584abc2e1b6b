"""Who listens to NATS, and when nobody did: subscriptions and gaps together.

Rules: a gap of the broker lasts from the loss of the connection until every partition has its verdict. One whose
subscription NATS refuses then, or takes away, has a gap of its own until it is confirmed. Both are on their way to the
disk as soon as they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.base.clock import Now
from penstock.messages import GapInfo
from penstock.node.gaps import Gaps
from penstock.node.partition import Partition
from penstock.node.step import Lane, Outbox
from penstock.node.subscriptions import Subscriptions, Verdicts
from penstock.vfs import Vfs


class Listening:
    """`confirmed` and `refused` tell what NATS says of one partition."""

    def __init__(
        self,
        vfs: Vfs,
        outbox: Outbox,
        *,
        confirmed: Callable[[Partition], None],
        refused: Callable[[Partition, str], None],
    ) -> None:
        self.gaps = Gaps(vfs)
        self.subscriptions: Subscriptions[Partition] = Subscriptions(
            outbox, Verdicts(self._confirmed, self._refused, self._settled)
        )
        self._outbox = outbox
        self._tell_confirmed = confirmed
        self._tell_refused = refused
        self._refusals: dict[Partition, str] = {}
        self._is_saving = self._is_changed = self._is_stopped = False

    def load(self, *, stream_ids: Iterable[int], last_sign_of_life_us: int, now_us: int) -> None:
        """Take over what earlier runs left; blocking. The streams are those that there are."""
        note = self.gaps.load(stream_ids=stream_ids, last_sign_of_life_us=last_sign_of_life_us, now_us=now_us)
        if note is not None:
            self._outbox.notice(note)

    def remove(self, partition: Partition) -> None:
        """Its stream was deleted."""
        self.subscriptions.remove(partition)
        self._refusals.pop(partition, None)
        if self.gaps.forget(partition.key):
            self._save()

    def took_over(self, partition: Partition, since_us: int, now: Now) -> None:
        """Another broker listened there until `since_us`, by the calendar; a gap lasts until this one does."""
        if not self.gaps.is_open and self.gaps.begin(since_us, "another broker led it", partition.key):
            self._save()

    def resign(self, partition: Partition, now: Now) -> None:
        """Another broker listens there from now on, and keeps the account of when nobody does."""
        self.subscriptions.remove(partition)
        self._refusals.pop(partition, None)
        if self.gaps.end(now.wall_us, partition.key) is not None:
            self._save()

    def lost(self, now: Now, reason: str) -> None:
        """The connection to NATS is gone: nobody listens from `now` on."""
        self.subscriptions.lost()
        self._refusals.clear()
        if not self.gaps.is_open:
            self.gaps.begin(now.wall_us, reason)
            self._save()

    def stop(self, now: Now) -> None:
        """The broker stops: the last gap begins; blocking."""
        self._is_stopped = True
        self.gaps.begin(now.wall_us, "the broker was stopped")
        try:
            self.gaps.save().run()
        except OSError as error:
            self._saved(error)

    def _confirmed(self, partition: Partition, now: Now) -> None:
        self._refusals.pop(partition, None)
        if (gap := self.gaps.end(now.wall_us, partition.key)) is not None:
            self._tell(f"{partition.label}: ", gap)
            self._save()
        self._tell_confirmed(partition)

    def _refused(self, partition: Partition, reason: str, now: Now) -> None:
        self._refusals[partition] = reason
        if not self.gaps.is_open:
            self._begin_for(partition, reason, now)
        self._tell_refused(partition, reason)

    def _begin_for(self, partition: Partition, reason: str, now: Now) -> None:
        if self.gaps.begin(now.wall_us, f"NATS refused the subscription: {reason}", partition.key):
            self._save()

    def _settled(self, now: Now) -> None:
        gap = self.gaps.end(now.wall_us)
        for partition, reason in self._refusals.items():
            self._begin_for(partition, reason, now)
        if gap is not None:
            self._tell("", gap)
            self._save()

    def _tell(self, who: str, gap: GapInfo) -> None:
        assert gap.end_us is not None
        seconds = (gap.end_us - gap.start_us) / 1e6
        self._outbox.notice(
            f"{who}not subscribed for at most {seconds:.3f} s ({gap.reason}): "
            "what was published then may not be stored; what was acked is"
        )

    def _save(self) -> None:
        """One writer at a time, or an older list could replace a newer one."""
        self._is_changed = True
        if not self._is_saving:
            self._is_saving, self._is_changed = True, False
            self._outbox.work(Lane.WRITE, self.gaps.save().run, self._saved)

    def _saved(self, error: Exception | None) -> None:
        self._is_saving = False
        if error is not None:
            self._outbox.notice(f"cannot save the list of gaps: {error}")
        if self._is_changed and not self._is_stopped:
            self._save()
