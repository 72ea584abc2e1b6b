"""Expiry of messages in the partitions led here, within a second: by their own time to live, and with delete markers
also by the stream's maximum age.

Rules: the leader decides for all replicas, also where there is only one. A disk thread finds what is over
(`node.partition.expiry`), one round at a time for each partition, and the leader hides it by marks. A round begins when
a message expires, and EXPIRY_LEARN_MS after the one before if messages were committed, to learn when these do: nothing
is done while a message is published. A round is bounded, and the next one follows at once if there is more; partitions
take turns.

    committed, or due → read → markers appended → committed ─┬─▶ marked → mark committed: hidden → settled
                           └─ no subject is emptied ─────────┘

A subject whose last message expires gets its delete marker first, which is a rollup: it hides that message, so no
reader finds the subject without both, and no leader finds it twice. What came on the subject while the round read the
log is recorded (`Partition.newcomers`), and no marker is written then. Nor is one for a message that is
removed on request: a round waits for the requests that are pending. If the leadership ends,
the next leader reads its log anew: a committed marker is the subject's last message, and a lost one is written again.

Where the maximum age removes messages here, and not the log's retention, the log start follows what is hidden, once the
deduplication window is over: the ids below the log start are forgotten in the next leadership.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.live.marks import HideReason
from penstock.live.row_set import NONE
from penstock.messages import AddCompanionRequest, AppendResponse, Response
from penstock.metadata.companions import is_companion
from penstock.node.api.append_api import AppendApi
from penstock.node.api.deletions import Deletions
from penstock.node.api.rounds import PartitionRounds, Rounds
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.expiry import ExpiryRules, FindExpired, markers
from penstock.node.partition.expiry_blocks import NextRowsBudget
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.replicas import Replicas
from penstock.node.replicas.roles import expires_by_rows
from penstock.node.step import InternalCaller
from penstock.replication.leader import Leadership

_PAUSE_US = limits.EXPIRY_PAUSE_MS * 1_000
_LEARN_US = limits.EXPIRY_LEARN_MS * 1_000
_LEARN_US_MIN = limits.EXPIRY_LEARN_MS_MIN * 1_000
_RETRY_US = limits.MAINTENANCE_RETRY_MS * 1_000
_WAIT_US_MAX = limits.EXPIRY_WAIT_MS_MAX * 1_000
_SOON = (ErrorCode.NOT_YET, ErrorCode.NOT_LEADER, ErrorCode.FENCED_EPOCH)  # not worth a notice


class _Expiring(PartitionRounds):
    """State of one partition's expiry in one leadership."""

    __slots__ = ("markers_end", "marking", "rules", "start_us")

    def __init__(
        self, partition: Partition, leadership: Leadership, rules: ExpiryRules, budget: NextRowsBudget
    ) -> None:
        longest_us = rules.longest_us or limits.OFFSET_MAX
        super().__init__(partition, leadership, budget, min(_LEARN_US, max(_LEARN_US_MIN, longest_us // 4)))
        self.rules = rules
        self.marking: FindExpired | None = None  # a query whose markers are not shown yet
        self.markers_end = 0  # end of these
        self.start_us: int | None = None  # elapsed time when the log start can follow what is hidden

    def over(self) -> None:
        """Forget the round."""
        super().over()
        self.marking = None


class Expiries:
    """Expiry in all partitions of one broker."""

    def __init__(
        self, context: Context, cluster: Cluster, replicas: Replicas, storing: AppendApi, deletions: Deletions
    ) -> None:
        self._context, self._outbox = context, context.outbox
        self._cluster = cluster
        self._hidden, self._companions = replicas.hidden_rows, replicas.companions
        self._upkeep = replicas.log_maintenance
        self._storing, self._deletions, self._truncations = storing, deletions, replicas.truncations
        self._rounds: Rounds[_Expiring] = Rounds(context, limits.EXPIRIES_RUNNING_MAX, self._begin)

    # When

    def check(self, partition: Partition) -> None:
        """Plan a round after messages were committed or shown, or the config or the leader has changed."""
        one, leadership = self._rounds.get(partition), partition.leadership
        if one is None or one.leadership is not leadership or one.rules != ExpiryRules.of(partition.stream.config):
            self.forget(partition)
            if leadership is None or self._rounds.is_stopped or not self._applies(partition):
                return
            rules = ExpiryRules.of(partition.stream.config)
            one = _Expiring(partition, leadership, rules, self._rounds.budget)
            self._rounds.add(one)
        self._hide_behind_markers(one)
        self._rounds.plan_to_learn(one)

    def _applies(self, partition: Partition) -> bool:
        stream = partition.stream
        is_kept = stream.intake is Intake.SEALED or stream.config.is_deletion_suspended
        is_open = partition.when_idle is None and not is_companion(partition.key.stream_id)
        return is_open and not is_kept and expires_by_rows(self._context.image, stream)

    def forget(self, partition: Partition) -> None:
        """Drop what is known of a partition that is no longer led here, or is gone."""
        self._rounds.forget(partition)

    def stop(self) -> None:
        """Begin no more rounds because the broker stops. May be called twice."""
        self._rounds.stop()

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._rounds.next_deadline_us

    def tick(self, now_us: int) -> None:
        """Begin the rounds that are due; `now_us` is elapsed time."""
        self._rounds.tick(now_us)

    # A round

    def _begin(self, one: _Expiring) -> None:
        partition, now = one.partition, self._context.now
        if not self._applies(partition):
            self.forget(partition)
            return
        one.begun_us = now.elapsed_us
        end = partition.committed_end
        if partition.needs_decisions:
            end = min(end, partition.decided_end)
        next_us = one.blocks.next_us
        is_start_due = one.start_us is not None and now.elapsed_us >= one.start_us
        if one.blocks.known_end >= end and (next_us is None or next_us > now.wall_us) and not is_start_due:
            self._end(one)
            return
        try:
            partition.require_high_watermark()
            self._companions.check_readable(partition)
            if not partition.knows_hidden:
                raise RemoteError(ErrorCode.NOT_YET, "what is hidden is not known yet")
            if one.rules.marker_us:
                one.newcomers = partition.note_newcomers()
            view = partition.live_view()
        except RemoteError as error:
            self._retry(one, error)
            return
        query = FindExpired(view, one.blocks, end, now.wall_us, one.rules)

        def heard(error: Exception | None) -> None:
            if error is not None:
                self._retry(one, error)
            elif query.emptied:
                self._append_markers(one, query)
            else:
                self._hide(one, query)

        self._rounds.read(one, query, heard)

    def _append_markers(self, one: _Expiring, query: FindExpired) -> None:
        partition, newcomers = one.partition, one.newcomers_since(query.log_end)
        if newcomers is None:
            self._retry(one, None)  # what has come since the round began is not known
            return
        find, hidden, log_start = newcomers.find, partition.log.hidden or NONE, partition.log_start

        def needs_marker(name: bytes, last: int) -> bool:  # deleted or purged meanwhile, it leaves none
            return find(name, 0, len(name)) < 0 and last >= log_start and last not in hidden

        emptied = {name: last for name, last in query.emptied.items() if needs_marker(name, last)}
        if not emptied or not partition.stream.takes:
            self._hide(one, query)
            return
        if self._may_be_purged(partition, emptied):
            self._retry(one, None)
            return

        def heard(response: Response | RemoteError) -> None:
            if not self._rounds.is_current(one):
                return
            if isinstance(response, AppendResponse):
                one.marking, one.markers_end = query, response.base_offset + len(emptied)
                self._hide_behind_markers(one)
            elif isinstance(response, RemoteError) and response.code != ErrorCode.STREAM_FULL:
                self._retry(one, response)
            else:  # what expires makes room in a full stream, which takes no marker
                self._hide(one, query)

        made = query.markers
        if made is None or len(emptied) < len(query.emptied):
            made = markers([*emptied], one.rules.marker_us)
        self._storing.append_to(partition, InternalCaller(heard), made.data, made.asked, are_rollups=True)
        partition.markers_end = partition.log.log_end

    def _may_be_purged(self, partition: Partition, lasts: Mapping[bytes, int]) -> bool:
        """True if a pending request may remove one of these messages, of which no marker is to be left then."""
        return min(lasts.values()) < self._truncations.pending_end(partition) or self._deletions.may_hide(
            partition, lasts
        )

    def _hide_behind_markers(self, one: _Expiring) -> None:
        """Hide what the round found once its markers are shown: no reader finds a subject without both."""
        query = one.marking
        if query is not None and one.partition.visible_end >= one.markers_end:
            one.marking = None
            self._hide(one, query)

    def _hide(self, one: _Expiring, query: FindExpired) -> None:
        partition = one.partition
        if not query.found:
            self._settle(one, query)
            return
        try:
            if not partition.stream.has_marks:
                request = AddCompanionRequest(stream_id=partition.key.stream_id)
                self._cluster.link.ask(request, partial(self._companion_added, one))
                return
            rows = self._hidden.marks(partition, query.pieces, HideReason.EXPIRY, "", self._context.now)
            self._storing.append_to_companion(partition, rows, partial(self._hidden_now, one, query))
        except RemoteError as error:
            self._retry(one, error)

    def _companion_added(self, one: _Expiring, response: Response | RemoteError) -> None:
        if self._rounds.is_current(one):
            self._retry(one, response if isinstance(response, RemoteError) else None)

    def _hidden_now(self, one: _Expiring, query: FindExpired, answer: AppendResponse | RemoteError) -> None:
        if not self._rounds.is_current(one):
            return
        if isinstance(answer, RemoteError):
            self._retry(one, answer)
        else:
            self._settle(one, query)

    def _settle(self, one: _Expiring, query: FindExpired) -> None:
        query.settle()
        partition = one.partition
        partition.unmarked = ""
        hidden = partition.log.hidden
        one.start_us = None
        if one.rules.longest_us and hidden is not None:
            wanted = min(hidden.first_absent(partition.log_start), partition.visible_end)
            if (start := min(wanted, query.ids_from)) > partition.log_start:
                self._upkeep.give_up(partition, start)
            if start < wanted:
                one.start_us = self._context.now.elapsed_us + one.rules.ids_us
        self._end(one, is_cut=query.is_cut)

    def _end(self, one: _Expiring, *, is_cut: bool = False) -> None:
        """Plan the next round."""
        one.over()
        now, partition = self._context.now, one.partition
        next_us = one.blocks.next_us
        dues_us = [now.elapsed_us] if is_cut else []
        if one.blocks.known_end < partition.committed_end:
            dues_us.append(one.begun_us + one.learn_us)
        if next_us is not None:
            wait_us = min(max(0, next_us - now.wall_us), _WAIT_US_MAX)
            dues_us.append(max(now.elapsed_us + wait_us, one.begun_us + _PAUSE_US))
        if one.start_us is not None:
            dues_us.append(max(one.start_us, one.begun_us + _PAUSE_US))
        if dues_us:
            self._rounds.plan(one, min(dues_us))

    def _retry(self, one: _Expiring, error: Exception | None) -> None:
        """Begin another round in a moment: nothing of this one is lost but the reading."""
        one.over()
        self._rounds.plan(one, self._context.now.elapsed_us + (_PAUSE_US if error is None else _RETRY_US))
        if error is None or isinstance(error, QueryGivenUpError):
            return
        told = as_remote_error(error)
        if told.code not in _SOON:
            one.partition.unmarked = f"expired messages stay for now: {told.message}"
            one.partition.tell(one.partition.unmarked, self._outbox)
