"""Who listens to NATS, and when nobody did: subscriptions and gaps together.

Rules: a gap of the broker lasts from the loss of the connection until every stream has its verdict. A stream whose
subscription NATS refuses then, or takes away, has a gap of its own until it is confirmed. Both are on their way to the
disk as soon as they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.base.clock import Now
from penstock.messages import GapInfo
from penstock.node.gaps import Gaps
from penstock.node.step import Lane, Outbox
from penstock.node.subscriptions import Subscriptions, Verdicts
from penstock.vfs import Vfs


class Listening:
    """`confirmed` and `refused` tell what NATS says of one stream."""

    def __init__(
        self,
        vfs: Vfs,
        outbox: Outbox,
        *,
        name: Callable[[int], str],
        confirmed: Callable[[int], None],
        refused: Callable[[int, str], None],
    ) -> None:
        self.gaps = Gaps(vfs)
        self.subscriptions = Subscriptions(outbox, Verdicts(self._confirmed, self._refused, self._settled))
        self._outbox = outbox
        self._name = name
        self._tell_confirmed = confirmed
        self._tell_refused = refused
        self._refusals: dict[int, str] = {}
        self._is_saving = self._is_changed = self._is_stopped = False

    def load(self, *, stream_ids: Iterable[int], last_sign_of_life_us: int, now_us: int) -> None:
        """Take over what earlier runs left; blocking. The streams are those that there are."""
        note = self.gaps.load(stream_ids=stream_ids, last_sign_of_life_us=last_sign_of_life_us, now_us=now_us)
        if note is not None:
            self._outbox.notice(note)

    def remove(self, stream_id: int) -> None:
        """The stream was deleted."""
        self.subscriptions.remove(stream_id)
        self._refusals.pop(stream_id, None)
        if self.gaps.forget(stream_id):
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

    def _confirmed(self, stream_id: int, now: Now) -> None:
        self._refusals.pop(stream_id, None)
        if (gap := self.gaps.end(now.wall_us, stream_id)) is not None:
            self._tell(f"stream {self._name(stream_id)!r}: ", gap)
            self._save()
        self._tell_confirmed(stream_id)

    def _refused(self, stream_id: int, reason: str, now: Now) -> None:
        self._refusals[stream_id] = reason
        if not self.gaps.is_open:
            self._begin_for(stream_id, reason, now)
        self._tell_refused(stream_id, reason)

    def _begin_for(self, stream_id: int, reason: str, now: Now) -> None:
        if self.gaps.begin(now.wall_us, f"NATS refused the subscription: {reason}", stream_id):
            self._save()

    def _settled(self, now: Now) -> None:
        gap = self.gaps.end(now.wall_us)
        for stream_id, reason in self._refusals.items():
            self._begin_for(stream_id, reason, now)
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
