"""Stream administration on the metadata leader: create, alter, pause, seal, truncate and delete.

Rules: an impossible request is refused before it is proposed. A request that only waits for brokers of the cluster that
are disconnected is refused as `broker_unavailable`: the broker that forwards a client's request retries while there is
time. A creation is answered once every live broker knows the stream and NATS has confirmed the subscriptions of all its
leaders: messages published afterwards are stored. The same holds for a change of a stream's intake: messages published
after a seal are not stored. A broker that is fenced meanwhile is no longer waited for. If NATS refuses a stream that
was just created and is empty, the stream is deleted again, so that no stream is left that cannot work.

    proposed ─▶ applied ─▶ every live broker asked ─▶ all have it ─▶ answered
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Offset
from penstock.base.staged import staged_name
from penstock.messages import (
    AddCompanionRequest,
    AddCompanionResponse,
    AlterStreamRequest,
    AlterStreamResponse,
    AwaitStreamRequest,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    MarkKeysRequest,
    MarkKeysResponse,
    RecordDeletionRequest,
    RecordDeletionResponse,
    ReportArchivedRequest,
    ReportArchivedResponse,
    Request,
    Response,
    SetIntakeRequest,
    SetIntakeResponse,
    StagedStreamRequest,
    StagedStreamResponse,
    StreamInfo,
    TruncateRequest,
    TruncateResponse,
)
from penstock.metadata.commands import (
    AddCompanion,
    AddPartitions,
    AddReplicas,
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    MarkKeys,
    RecordDeletion,
    ReportArchived,
    SetIntake,
    TruncatePartition,
)
from penstock.metadata.effects.partition_expansion import check_growth
from penstock.metadata.effects.streams import (
    altered_config,
    check_create,
    check_observers,
    check_owned,
    check_room,
    created_config,
    is_decided,
    replicas_wanted,
)
from penstock.metadata.image import ClusterImage, CommandOutcome, OwnedStreams, StreamState
from penstock.metadata.overlaps import check_no_overlap, overlapping
from penstock.node.context import Context
from penstock.node.controller.apply_barriers import ClusterApplyBarrier
from penstock.node.controller.replica_expansion import next_step
from penstock.node.controller.stream_placement import StreamPlacement
from penstock.node.partition.internal_streams import staged_config
from penstock.node.quorum.metadata_forwarding import Administrative
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.stream_waiters import ExpectedStream, WaitFor
from penstock.node.security.access import Authorization

Done = Callable[[Response | RemoteError], None]
_AGAIN = frozenset({ErrorCode.BROKER_UNAVAILABLE, ErrorCode.OVERLOADED, ErrorCode.STOPPING})
_RETRY_US = limits.FORWARD_RETRY_MS * 1_000


@dataclass(slots=True, eq=False)
class _Creation:
    """A stream that exists or has a new intake, and the brokers that have not confirmed it."""

    state: StreamState
    is_new: bool
    deadline_us: int
    done: Done
    answer: Callable[[StreamInfo], Response]
    missing: set[BrokerId]
    asked: set[BrokerId]
    retry_us: int = 0


class StreamAdmin:
    def __init__(
        self,
        context: Context,
        quorum: Quorum,
        peers: PeerClient,
        placing: StreamPlacement,
        *,
        await_here: WaitFor,
        info: Callable[[StreamState], StreamInfo],
    ) -> None:
        self._quorum = quorum
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._placing = placing
        self._context = context
        self._await_here = await_here
        self._info = info
        self._creations: list[_Creation] = []
        self._applications = ClusterApplyBarrier(context, quorum, peers)
        self._under_way: dict[str, OwnedStreams] = {}  # streams and partitions proposed for users and not yet applied
        self._handlers: dict[type[Request], Callable[[Any, Authorization, Done], None]] = {
            CreateStreamRequest: self._create,
            AlterStreamRequest: self._alter,
            SetIntakeRequest: self._set_intake,
            TruncateRequest: self._truncate,
            StagedStreamRequest: self._make_staged,
            ReportArchivedRequest: self._report_archived,
            DeleteStreamRequest: self._delete,
        }

    @property
    def _image(self) -> ClusterImage:
        return self._quorum.image

    def _propose(
        self, command: Command, auth: Authorization, done: Callable[[CommandOutcome | RemoteError], None]
    ) -> None:
        self._quorum.propose(auth.signed(command), done)

    def _propose_more(
        self,
        command: Command,
        auth: Authorization,
        payer: str,
        more: OwnedStreams,
        done: Callable[[CommandOutcome | RemoteError], None],
    ) -> None:
        """Propose a command that adds streams or partitions for a user.

        They count against the limits until the command is applied or refused, so that many requests at once cannot
        exceed them.
        """
        self._under_way[payer] = self._under_way.get(payer, OwnedStreams()).plus(more)

        def heard(outcome: CommandOutcome | RemoteError) -> None:
            left = self._under_way.pop(payer, OwnedStreams()).plus(more.times(-1))  # no entry: its sum was zero
            if any(left):
                self._under_way[payer] = left
            done(outcome)

        self._propose(command, auth, heard)

    def handle(self, request: Administrative, auth: Authorization, done: Done) -> None:
        """Execute a client's request, which was authorised; call `done` once."""
        try:
            self._handlers[type(request)](request, auth, done)
        except RemoteError as error:
            done(error)

    # Create

    def _create(self, request: CreateStreamRequest, auth: Authorization, done: Done) -> None:
        now = self._context.now
        deadline_us = now.elapsed_us + min(request.timeout_ms, limits.FETCH_WAIT_MS_MAX) * 1_000
        brokers, ready = self._placing.brokers(), self._placing.ready(request.config)
        by = auth.signature
        try:
            existing = check_create(
                self._image, request.config, brokers=len(brokers), ready=len(ready), by=by, under_way=self._under_way
            )
        except RemoteError as error:
            raise self._as_seen(error, request.config.name, auth) from None
        beside = self._overlapping(request.config, auth)
        if existing is not None:
            self._wait(existing, done, deadline_us, beside, is_new=False)
            return
        if request.refuse_overlap:  # checked again when it is applied, for others may be under way
            check_no_overlap(self._image, request.config)
        replicas = replicas_wanted(request.config, len(brokers))
        assignments = self._placing.assign(request.config.partitions, replicas, ready)
        command = CreateStream(
            config=created_config(request.config, replicas),
            created_us=now.wall_us,
            assignments=assignments,
            observers=self._placing.observers(assignments, request.config),
            intake=request.intake,
            refuse_overlap=request.refuse_overlap,
        )

        def made(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(self._as_seen(outcome, request.config.name, auth))
                return
            assert outcome.stream is not None
            self._wait(outcome.stream, done, deadline_us, beside, is_new=outcome.changed)

        self._propose_more(command, auth, by, OwnedStreams.needed(request.config), made)

    def _as_seen(self, error: RemoteError, name: str, auth: Authorization) -> RemoteError:
        """Return the error for a taken stream name; it reveals nothing of a stream that the caller may not see."""
        if error.code != ErrorCode.STREAM_EXISTS or "differences" not in error.details:
            return error
        there = self._image.names.get(name)
        if there is not None and auth.may_see(self._image.streams[there]):
            return error
        return RemoteError(ErrorCode.STREAM_EXISTS, f"the name {name!r} is taken: take another one")

    def _make_staged(self, request: StagedStreamRequest, auth: Authorization, done: Done) -> None:
        """Create the stream for the rows staged for another stream, on the same replicas."""
        now = self._context.now
        deadline_us = now.elapsed_us + min(request.timeout_ms, limits.FETCH_WAIT_MS_MAX) * 1_000
        image = self._image
        target = image.by_id(request.stream_id)
        if target.config.is_internal:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing is staged for {target.name!r}, which is Penstock's own")

        def wait(state: StreamState) -> None:
            self._wait_for_all(state, done, deadline_us, lambda info: StagedStreamResponse(stream=info))

        name = staged_name(target.stream_id)
        if name in image.names:
            holder = image.by_name(name)
            missing = target.partitions[len(holder.partitions) :]
            if not missing:
                wait(holder)
                return

            def added(response: Response | RemoteError) -> None:
                there = self._image.names.get(name)
                if there is not None and len(self._image.streams[there].partitions) >= len(target.partitions):
                    wait(self._image.streams[there])  # another request has added them meanwhile
                else:
                    done(response)

            self._add(holder, auth, tuple(one.replicas for one in missing), (), (), wait, added)
            return
        by = auth.signature  # the staged stream has as many partitions as its target
        check_room(image, target.config.partitions, by, under_way=self._under_way)

        def made(outcome: CommandOutcome | RemoteError) -> None:
            there = self._image.names.get(name)
            if there is not None:  # also if it was created with another config of the target
                wait(self._image.streams[there])
            elif isinstance(outcome, RemoteError):
                done(outcome)
            else:
                done(RemoteError(ErrorCode.STREAM_CHANGED, f"stream {request.stream_id} was deleted meanwhile"))

        assignments = tuple(one.replicas for one in target.partitions)
        command = CreateStream(
            config=staged_config(target.stream_id, target.config), created_us=now.wall_us, assignments=assignments
        )
        self._propose_more(command, auth, by, OwnedStreams(1, len(assignments)), made)

    def _overlapping(self, config: StreamConfig, auth: Authorization) -> tuple[str, ...]:
        """Return the streams that store messages of the same subjects and that the caller may see."""
        seen = sorted(state.name for state in overlapping(self._image, config) if auth.may_see(state))
        return tuple(seen[: limits.OVERLAPPING_TOLD_MAX])

    def _wait(self, state: StreamState, done: Done, deadline_us: int, beside: tuple[str, ...], *, is_new: bool) -> None:
        def answer(info: StreamInfo) -> Response:
            stream = msgspec.structs.replace(info, overlapping=beside) if beside else info
            return CreateStreamResponse(stream=stream, created=is_new)

        self._wait_for_all(state, done, deadline_us, answer, is_new)

    def _wait_for_all(
        self,
        state: StreamState,
        done: Done,
        deadline_us: int,
        answer: Callable[[StreamInfo], Response],
        is_new: bool = False,
    ) -> None:
        creation = _Creation(state, is_new, deadline_us, done, answer, set(self._image.live_brokers()), set())
        self._creations.append(creation)
        self._ask(creation)

    def _ask(self, creation: _Creation) -> None:
        """Ask the live brokers that have not confirmed and are not being asked; no longer wait for fenced ones."""
        creation.missing &= self._image.live_brokers()
        creation.retry_us = self._context.now.elapsed_us + _RETRY_US
        for broker_id in sorted(creation.missing - creation.asked):
            creation.asked.add(broker_id)
            if broker_id == self._broker_id:
                self._await_here(
                    creation.state.stream_id,
                    creation.deadline_us,
                    lambda error, broker_id=broker_id: self._heard(creation, broker_id, error),  # type: ignore[misc]
                    ExpectedStream.of(creation.state),
                )
            else:
                self._ask_peer(creation, broker_id)
        self._answer_if_all(creation)

    def _ask_peer(self, creation: _Creation, broker_id: BrokerId) -> None:
        left_ms = max(0, creation.deadline_us - self._context.now.elapsed_us) // 1_000

        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            self._heard(creation, broker_id, response if isinstance(response, RemoteError) else None)

        request = AwaitStreamRequest(
            stream_id=creation.state.stream_id, timeout_ms=left_ms, **ExpectedStream.of(creation.state)._asdict()
        )
        self._peers.send(broker_id, request, done=done)

    def _heard(self, creation: _Creation, broker_id: BrokerId, error: RemoteError | None) -> None:
        if creation not in self._creations:
            return
        if error is None:
            creation.missing.discard(broker_id)
            self._answer_if_all(creation)
        elif error.code in _AGAIN:
            creation.asked.discard(broker_id)
        else:
            self._creations.remove(creation)
            self._refuse(creation, error)

    def _answer_if_all(self, creation: _Creation) -> None:
        if creation.missing or creation not in self._creations:
            return
        self._creations.remove(creation)
        try:
            creation.done(creation.answer(self._info(self._image.by_id(creation.state.stream_id))))
        except RemoteError as error:  # it was deleted meanwhile
            creation.done(error)

    def _refuse(self, creation: _Creation, error: RemoteError) -> None:
        if not (creation.is_new and error.code == ErrorCode.NATS_REFUSED and error.details.get("is_empty")):
            creation.done(error)
            return

        def deleted(outcome: CommandOutcome | RemoteError) -> None:
            # Answer only now, so that the name is free for another try.
            text = (
                error.message if isinstance(outcome, RemoteError) else f"{error.message}; so the stream was not created"
            )
            creation.done(RemoteError(error.code, text))

        self._quorum.propose(DeleteStream(stream_id=creation.state.stream_id), deleted)  # without a user: unrequested

    # Pause, resume, seal

    def _set_intake(self, request: SetIntakeRequest, auth: Authorization, done: Done) -> None:
        now = self._context.now
        state = self._named(request.name, request.stream_id)
        deadline_us = now.elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000

        def changed(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
                return
            assert outcome.stream is not None
            self._wait_for_all(outcome.stream, done, deadline_us, lambda info: SetIntakeResponse(stream=info))

        self._propose(SetIntake(stream_id=state.stream_id, intake=request.intake, since_us=now.wall_us), auth, changed)

    # Alter, truncate, delete

    def _alter(self, request: AlterStreamRequest, auth: Authorization, done: Done) -> None:
        state = self._named(request.name, request.stream_id)
        deadline_us = self._context.now.elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000
        if "partitions" in request.changes or "range_bounds" in request.changes:
            if request.add_subjects or request.remove_subjects:
                text = "partitions: they are added alone; give the stream its subjects before or after that"
                raise RemoteError(ErrorCode.INVALID_CONFIG, text, mistakes=[text])
            self._grow(state, request.changes, auth, done)
            return
        # refuse an impossible change before it is proposed
        config = altered_config(state.config, request.changes, request.add_subjects, request.remove_subjects)
        if request.refuse_overlap:
            check_no_overlap(self._image, config)
        payer = self._payer(state, auth)
        check_owned(self._image, config, payer, state, self._under_way)
        if is_decided(self._image, config) and not state.has_marks:
            check_room(self._image, len(state.partitions), payer, streams=0, under_way=self._under_way)
        observers = None
        if config.observers > state.config.observers:
            assert config.replicas is not None
            count = len(self._placing.brokers())  # `observers` below raises if too few are live
            check_observers(config.observers, config.replicas, brokers=count, ready=count)
        if config.observers != state.config.observers:
            observers = self._placing.observers(state.partitions, config)

        def altered(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
                return
            assert outcome.stream is not None
            state = outcome.stream
            is_listening_anew = bool(request.add_subjects or request.remove_subjects)
            is_suspended = "suspend_deletion" in request.changes and state.config.is_deletion_suspended
            if not (is_suspended or is_listening_anew or request.everywhere):
                done(AlterStreamResponse(stream=self._info(state)))
                return

            def heard(response: Response | RemoteError) -> None:
                if isinstance(response, RemoteError) and response.code == ErrorCode.NATS_REFUSED:
                    response = RemoteError(response.code, f"the subjects are changed, but {response.message}")
                done(response)

            def applied(error: RemoteError | None) -> None:
                if error is not None:
                    done(error)
                elif is_listening_anew:
                    self._wait_for_all(state, heard, deadline_us, lambda info: AlterStreamResponse(stream=info))
                else:
                    done(AlterStreamResponse(stream=self._info(state)))

            # Until then a leader that has not applied it goes on deleting, or has the former subscriptions.
            self._applications.wait(self._image.index, deadline_us, applied)

        command = AlterStream(
            stream_id=state.stream_id,
            changes=request.changes,
            observers=observers,
            keep_suspended=request.keep_suspended,
            add_subjects=request.add_subjects,
            remove_subjects=request.remove_subjects,
            refuse_overlap=request.refuse_overlap,
        )
        self._propose_more(command, auth, payer, OwnedStreams.needed(config).beyond(OwnedStreams.of(state)), altered)

    def _payer(self, state: StreamState, auth: Authorization) -> str:
        """Return the user whose quota the stream counts for; empty: none, or an administrator changes the stream."""
        return "" if auth.is_free else state.owner

    # More partitions

    def _grow(self, state: StreamState, changes: Mapping[str, Any], auth: Authorization, done: Done) -> None:
        """Add partitions; answered once all live brokers have them and are subscribed for those they lead."""
        now = self._context.now
        config = check_growth(self._image, state, changes)
        added = config.partitions - len(state.partitions)
        if not added:
            done(AlterStreamResponse(stream=self._info(state)))
            return
        payer = self._payer(state, auth)
        check_owned(self._image, config, payer, state, self._under_way)
        logs = added * (1 + len(state.companions))
        check_room(self._image, logs, payer, streams=0, under_way=self._under_way)
        assert config.replicas is not None
        assignments = self._placing.assign(added, config.replicas, self._placing.ready(config))
        deadline_us = now.elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000

        def made(grown: StreamState) -> None:
            self._wait_for_all(grown, done, deadline_us, lambda info: AlterStreamResponse(stream=info))

        observers = self._placing.observers(assignments, config)
        self._add(
            state, auth, assignments, observers, config.range_bounds[len(state.config.range_bounds) :], made, done
        )

    def _add(
        self,
        state: StreamState,
        auth: Authorization,
        assignments: tuple[tuple[BrokerId, ...], ...],
        observers: tuple[tuple[BrokerId, ...], ...],
        range_bounds: tuple[str, ...],
        made: Callable[[StreamState], None],
        done: Done,
    ) -> None:
        def added(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
                return
            assert outcome.stream is not None
            made(outcome.stream)

        command = AddPartitions(
            stream_id=state.stream_id,
            before=len(state.partitions),
            assignments=assignments,
            observers=observers,
            range_bounds=range_bounds,
        )
        grown = msgspec.structs.replace(state.config, partitions=len(state.partitions) + len(assignments))
        self._propose_more(
            command, auth, self._payer(state, auth), OwnedStreams.needed(grown).beyond(OwnedStreams.of(state)), added
        )

    def mark_keys(self, request: MarkKeysRequest, done: Done) -> None:
        """Record that a partition's leader has committed all that it has of the keys that left the partition."""

        def marked(outcome: CommandOutcome | RemoteError) -> None:
            done(outcome if isinstance(outcome, RemoteError) else MarkKeysResponse())

        command = MarkKeys(
            stream_id=request.stream_id,
            partitions=request.partitions,
            partition=request.partition,
            leader_epoch=request.leader_epoch,
            end_offset=request.end_offset,
            marked_us=request.marked_us,
        )
        self._quorum.propose(command, marked)

    def add_companion(self, request: AddCompanionRequest, done: Done) -> None:
        """Give each partition of a stream a companion log of a kind."""

        def added(outcome: CommandOutcome | RemoteError) -> None:
            done(outcome if isinstance(outcome, RemoteError) else AddCompanionResponse())

        try:
            state = self._image.by_id(request.stream_id)
            if request.kind not in state.companions:
                check_room(self._image, len(state.partitions), streams=0, under_way=self._under_way)
        except RemoteError as refusal:
            done(refusal)
            return
        self._quorum.propose(AddCompanion(stream_id=request.stream_id, kind=request.kind), added)

    def record_deletion(self, request: RecordDeletionRequest, done: Done) -> None:
        """Record for `__audit` what a user deletes."""

        def recorded(outcome: CommandOutcome | RemoteError) -> None:
            done(outcome if isinstance(outcome, RemoteError) else RecordDeletionResponse())

        command = RecordDeletion(
            stream_id=request.stream_id,
            partition=request.partition,
            messages=request.messages,
            ranges=request.ranges,
            subject=request.subject,
            keep=request.keep,
            is_secure=request.is_secure,
            by=request.by,
            at_us=self._context.now.wall_us,
        )
        self._quorum.propose(command, recorded)

    def _truncate(self, request: TruncateRequest, auth: Authorization, done: Done) -> None:
        if request.leader_epoch is None:
            raise RemoteError(ErrorCode.BAD_REQUEST, "only a partition's leader knows what is committed: ask that one")

        def truncated(outcome: CommandOutcome | RemoteError) -> None:
            done(outcome if isinstance(outcome, RemoteError) else TruncateResponse(log_start=request.before))

        command = TruncatePartition(
            stream_id=request.stream_id,
            partition=request.partition,
            leader_epoch=request.leader_epoch,
            before=request.before,
        )
        self._propose(command, auth, truncated)

    def _report_archived(self, request: ReportArchivedRequest, auth: Authorization, done: Done) -> None:
        if request.leader_epoch is None:
            raise RemoteError(ErrorCode.BAD_REQUEST, "only a partition's leader knows what is committed: ask that one")

        def reported(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
                return
            assert outcome.stream is not None
            ends = [one.end_offset for one in outcome.stream.archived_at(request.partition)]
            none = Offset(0) if outcome.stream.archived else None  # none has reported this partition
            done(ReportArchivedResponse(archived_end=min(ends, default=none)))

        command = ReportArchived(
            stream_id=request.stream_id,
            partition=request.partition,
            leader_epoch=request.leader_epoch,
            archive=request.archive,
            end_offset=request.end_offset,
        )
        self._propose(command, auth, reported)

    def _delete(self, request: DeleteStreamRequest, auth: Authorization, done: Done) -> None:
        """Delete a stream. Where all brokers are to know it, a stream of that id that was deleted before is deleted.

        The request is asked again when the metadata leader changes, and the first try may have taken effect.
        """
        image, stream_id = self._image, request.stream_id
        if not request.everywhere or stream_id is None or stream_id in image.streams or stream_id > image.index:
            stream_id = self._named(request.name, stream_id).stream_id
        deleted_id = stream_id
        deadline_us = self._context.now.elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000

        def applied(error: RemoteError | None) -> None:
            done(DeleteStreamResponse(stream_id=deleted_id) if error is None else error)

        def deleted(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError) and not (
                request.everywhere and outcome.code == ErrorCode.STREAM_CHANGED  # deleted meanwhile
            ):
                done(outcome)
            elif request.everywhere:
                self._applications.wait(self._image.index, deadline_us, applied)
            else:
                applied(None)

        if stream_id in image.streams:
            self._propose(DeleteStream(stream_id=stream_id), auth, deleted)
        else:
            self._applications.wait(image.index, deadline_us, applied)

    def _named(self, name: str, stream_id: int | None) -> StreamState:
        state = self._image.by_name(name)
        if stream_id is not None and state.stream_id != stream_id:
            text = f"stream {name!r} was deleted and created again: its id is {state.stream_id}, not {stream_id}"
            raise RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=int(state.stream_id))
        return state

    # Time

    def wider(self) -> AddReplicas | AlterStream | None:
        """Return the next step towards the full replica count of Penstock's own streams."""
        return next_step(self._image, self._placing)

    def tick(self, now: Now) -> None:
        """Ask again the brokers that could not be asked; answer the requests that timed out."""
        self._applications.tick(now)
        for creation in list(self._creations):
            if now.elapsed_us >= creation.deadline_us + _RETRY_US:  # the brokers that were asked answer at the deadline
                self._creations.remove(creation)
                missing = ", ".join(map(str, sorted(creation.missing)))
                text = f"the stream exists, but broker {missing} has not confirmed it in time"
                creation.done(RemoteError(ErrorCode.TIMED_OUT, text))
            elif now.elapsed_us >= creation.retry_us:
                self._ask(creation)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` has something to do."""
        dues = [creation.retry_us for creation in self._creations]
        if (due := self._applications.next_deadline_us) is not None:
            dues.append(due)
        return min(dues, default=None)

    def stop(self, error: RemoteError) -> None:
        """Answer all that wait: this broker no longer leads the metadata, or is stopping."""
        self._applications.stop(error)
        creations, self._creations = self._creations, []
        for creation in creations:
            creation.done(error)
