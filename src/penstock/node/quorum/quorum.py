"""The metadata quorum: this broker's Raft member, its storage, and the image that the metadata log folds to.

Rules: entries, term and vote are on disk before anything that depends on them is sent or applied. While a save is under
way the Raft core takes no input: peers' messages wait in a bounded queue, and Raft recovers from those that do not fit;
commands and ticks wait, too. A proposal is answered once its entry is applied at the index and in the term that it was
proposed with; otherwise another command took its place. A leader whose disk is full retracts its proposals and asks
another voter to lead. A broker whose disk fails an fsync leaves the group until it is restarted, because it may have
lost its vote; so does a broker whose log contradicts its leader's, or whose version is too old. A leader whose save
hangs decides nothing while others may have elected another leader, and fails the requests that wait for it.

    propose ─▶ save (disk thread) ─▶ send to peers ─▶ committed ─▶ applied to the image ─▶ the proposer is answered

`node/quorum/peer_fencing.py` decides which senders' messages count. The order save, send, apply is that of etcd's
RawNode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId
from penstock.base.meters import Histogram
from penstock.messages import RaftRequest
from penstock.metadata.commands import Command, CreateStream, encode_command
from penstock.metadata.feature_versions import unsupported_reason
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.persistence.snapshot import encode_image
from penstock.node.context import Context
from penstock.node.quorum.cluster_formation import ClusterFormation
from penstock.node.quorum.metadata_entries import TooOldError, applied, image_in
from penstock.node.quorum.metadata_save import MetadataSave
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.peer_fencing import FORGOTTEN, PeerFencing, PeerProcess, ProcessStart
from penstock.node.quorum.pending_proposals import Done, Input, PendingProposals
from penstock.node.quorum.raft_listener import EntryPosition, RaftListener
from penstock.node.step import Lane
from penstock.raft import (
    Entry,
    EntryKind,
    NotLeaderError,
    NotWrittenError,
    Raft,
    RaftMembership,
    RaftStorage,
    Ready,
    SaveTask,
    Snapshot,
    decode_message,
    encode_message,
)
from penstock.raft.leader import Leader

_UNTOLD_TICKS = limits.METADATA_NO_CONTACT_MS // limits.RAFT_TICK_MS


class Quorum:
    """Raft, its storage and the image. An `RaftListener` is notified of every change."""

    def __init__(
        self,
        context: Context,
        storage: RaftStorage,
        raft: Raft,
        peers: PeerClient,
        *,
        own: PeerProcess,
        start: ProcessStart,
        observer: RaftListener,
    ) -> None:
        self._context = context
        context.image = image_in(storage.state.snapshot, context.settings.broker_version)
        self.trouble = ""  # why this broker no longer takes part; empty if it does
        self.sync_us = Histogram.of_times()  # fsync durations of saves
        self._raft = raft
        self._storage = storage
        self._outbox = context.outbox
        self._peers = peers
        self._observer = observer
        self.peer_fencing = PeerFencing(context, own, start, self._acknowledged_now)
        self.peer_fencing.note(storage.state.entries)
        self.cluster_formation = ClusterFormation(context, lambda: self.membership)
        self.cluster_formation.note(storage.state.entries)
        self._is_starting = True
        self._metadata_save = MetadataSave(raft)
        self._is_acting = False  # between the core's `ready` and `advance`
        self._full = ""  # the error of a full disk, until the next tick or command retries the save
        self._waits_ticks = 0  # ticks until it may ask another voter again to lead, because of a full disk
        self._missed = ""  # as a follower: why the last save failed; empty once one succeeds
        self._untold_ticks = 0  # ticks since that failure without contact from a leader
        self._vain_bytes = 0  # log size when a snapshot found no room; the next command retries it
        self._proposals = PendingProposals()
        # waiting leadership checks, by read-index context
        self._confirmations: dict[bytes, Callable[[RemoteError | None], None]] = {}
        self._confirmed = 0  # number of checks so far
        self._current_term = 0  # term in which it was elected and has applied all earlier entries
        self._told_term = 0  # term in which the observer was told that this broker leads; 0 if none

    # State

    @property
    def image(self) -> ClusterImage:
        """Metadata image, as far as this broker has applied it."""
        return self._context.image

    @property
    def leader(self) -> BrokerId | None:
        """Known metadata leader; None if unknown."""
        leader = self._metadata_save.leader
        return None if self.trouble and leader == self._raft.id else leader

    @property
    def is_leader(self) -> bool:
        """True if this broker is the metadata leader, has applied all earlier entries, and may decide."""
        return bool(self._told_term)

    @property
    def term(self) -> int:
        return self._raft.term

    @property
    def commit(self) -> int:
        """Known commit index."""
        return self._raft.commit

    @property
    def applied(self) -> int:
        """Index of the last entry applied here."""
        return self._raft.applied

    @property
    def membership(self) -> RaftMembership:
        return self._raft.membership

    @property
    def is_alone(self) -> bool:
        """True if there are no other members: then the passing of time changes nothing."""
        return self.membership.voters == (self._raft.id,) and not self.membership.learners

    @property
    def missed(self) -> str:
        """Why this broker cannot follow the metadata log although it receives it; empty if it can."""
        return "" if self.is_alone else self._metadata_save.stall or self._missed

    @property
    def obstacle(self) -> str:
        """Why this broker cannot change metadata until its disk recovers; empty if it can."""
        return self.trouble or (self._full if self.is_alone else "")

    @property
    def needs_ticks(self) -> bool:
        """True if ticks matter. A single member needs them only to retry after a full disk."""
        return not self.is_alone or bool(
            self._full and not self._metadata_save.is_under_way and not self.trouble and self._raft.has_ready()
        )

    def match_index(self, broker_id: BrokerId) -> int:
        """Index up to which a broker has the log, as this leader knows; 0 if this broker does not lead."""
        role = self._raft.role
        return role.match_index(broker_id) if isinstance(role, Leader) else 0

    # Inputs

    def start(self) -> None:
        """Apply committed entries; a single member elects itself and applies all. Saves block until `started`."""
        self._pump()  # first: on a full disk the election fails, but existing metadata can be read
        if self.is_alone:
            self._raft.campaign()
            self._pump()

    def started(self) -> None:
        """Let disk threads do the saves from now on."""
        self._is_starting = False

    def tick(self) -> None:
        """Pass one tick to Raft."""
        self.peer_fencing.tick()
        if self.trouble:
            return
        if self._metadata_save.is_under_way:
            self._note(self._metadata_save.tick)
            return
        self._full = ""
        self._look_for_room()
        self._waits_ticks = max(0, self._waits_ticks - 1)
        self._raft.may_stand = self.cluster_formation.elder is None
        self._raft.tick()
        self._pump()

    def _look_for_room(self) -> None:
        """Make a follower without entries poll: it never retries its save, so it would not notice freed disk space."""
        is_told = self._raft.leader is not None
        self._untold_ticks = self._untold_ticks + 1 if self._missed and not is_told else 0
        if self._untold_ticks >= _UNTOLD_TICKS:
            self._missed = ""

    def propose(self, command: Command, done: Done, placed: Callable[[int, int], None] | None = None) -> None:
        """Have `command` committed; `done` gets its outcome, or a RemoteError: not_metadata_leader, overloaded …

        `placed` gets the index and term of its entry, before that is committed.
        """
        if (error := unsupported_reason(self.image, command)) is not None:
            done(error)
            return
        data = encode_command(command)
        # No reserve for CreateStream: a stream without room for its entry would have none for its messages.
        has_reserve = not isinstance(command, CreateStream)
        self._input(Input(lambda: self._raft.propose(data), done, placed, has_reserve, len(data)))

    def change_membership(self, membership: RaftMembership, done: Done) -> None:
        """Change the membership by one voter at most; `done` gets the outcome once committed, or the error."""
        self._input(Input(lambda: self._raft.propose_change(membership), done))

    def hand_over(self, to: BrokerId) -> None:
        """Transfer the metadata leadership to `to`, if possible."""

        def transfer() -> None:
            with contextlib.suppress(RemoteError):
                self._raft.transfer(to)

        self._input(Input(transfer, None))

    def confirm(self, done: Callable[[RemoteError | None], None]) -> None:
        """Call `done(None)` once a majority confirms this leader (read index), or with an error once it is deposed."""
        self._confirmed += 1
        context = self._confirmed.to_bytes(8)

        def ask() -> None:
            if not self.is_leader:
                raise NotLeaderError(self.leader)
            self._raft.read_index(context)
            self._confirmations[context] = done

        def refused(error: CommandOutcome | RemoteError) -> None:
            assert isinstance(error, RemoteError)
            done(error)

        self._input(Input(ask, refused))

    def received(self, request: RaftRequest, raw: bytes | memoryview) -> None:
        """Handle a peer's Raft message. Raise RemoteError: bad_frame, or cluster_mismatch (sender on an older copy)."""
        message = decode_message(bytes(raw))
        is_heard = self.peer_fencing.may_speak(request, message, is_member=message.sender in self.membership)
        if self.trouble or not (is_heard and self.cluster_formation.takes(message)):
            return
        if self._metadata_save.is_under_way:
            self._note(partial(self._metadata_save.received, message, len(raw)))
            return
        self._raft.step(message)
        self._pump()

    def disk_of(self, broker_id: BrokerId) -> str:
        """Return the data directory id registered for a broker; empty if unknown."""
        return self.peer_fencing.of(broker_id).data_dir_id

    def process_of(self, broker_id: BrokerId) -> str:
        """Return the process id registered for a broker; empty if unknown."""
        return self.peer_fencing.of(broker_id).process

    def _acknowledged_now(self, broker_id: BrokerId) -> EntryPosition:
        return EntryPosition(self.match_index(broker_id), self._raft.term)

    def _input(self, given: Input) -> None:
        if self.trouble or (self._metadata_save.is_under_way and self.leader != self._raft.id):
            given.refuse(self._refusal())
        elif self._metadata_save.is_under_way or self._is_acting:
            self._metadata_save.put(given)
        else:
            self._full = ""
            self._tell_core(given)
            self._pump()

    def _tell_core(self, given: Input) -> None:
        try:
            place = given.act()
        except RemoteError as error:
            given.refuse(error)
            return
        if place is not None and given.done is not None:
            index, term = place
            self._proposals.add(index, term, given.done, may_use_reserve=given.may_use_reserve)
            if given.placed is not None:
                given.placed(index, term)

    def _refusal(self) -> RemoteError:
        """Return why input is refused. NotLeaderError lets the caller ask another broker, which may lead soon."""
        if not self.trouble:
            return NotLeaderError(self.leader)
        return RemoteError(ErrorCode.STORAGE_FAILED if self.is_alone else ErrorCode.STOPPING, self.trouble)

    # Saving and applying

    def _pump(self) -> None:
        while not (self._metadata_save.is_under_way or self._full or self.trouble) and self._raft.has_ready():
            ready = self._raft.ready()
            task = self._save_task(ready)
            if task is None:
                self._act_on(ready)
                self._tell_inputs()
            else:
                self._save(ready, task)
        if not self._metadata_save.is_under_way:
            if self._raft.contradiction is not None and not self.trouble:
                self._end(f"the metadata contradicts that of its leader ({self._raft.contradiction}): {FORGOTTEN}")
            self._tell_leadership()
            self._compact()

    def _save_task(self, ready: Ready) -> SaveTask | None:
        return self._storage.save(ready, may_use_reserve=self._proposals.may_use_reserve(ready.entries))

    def _save(self, ready: Ready, task: SaveTask) -> None:
        self._metadata_save.begin()

        def done(error: Exception | None) -> None:
            self._metadata_save.end()
            if error is None:
                if ready.entries or ready.snapshot is not None:
                    self._missed = ""
                self._storage.saved(task)
                self._act_on(ready)
            elif not self._has_failed(task, error):
                assert isinstance(error, NotWrittenError)
                self._full = str(error)
                self._miss(error)
                self._retract(ready, error)
                self._metadata_save.messages.clear()
                self._have_another_lead(error)
            self._go_on(is_full=error is not None)

        self._run(task, done)

    def _run(self, task: SaveTask, done: Callable[[Exception | None], None]) -> None:
        if not self._is_starting:
            self._outbox.work(Lane.WRITE, task.run, done, self.sync_us)
            return
        try:
            task.run()
        except (OSError, OperationalError) as error:
            done(error)
        else:
            done(None)

    def _has_failed(self, task: SaveTask, error: Exception) -> bool:
        """Report the failure to the storage. Return True if it is fatal; a full disk is not."""
        self._storage.save_failed(task, error)
        if isinstance(error, NotWrittenError):
            return False
        self._end(f"the metadata log cannot be written: {error}")
        return True

    def _end(self, trouble: str) -> None:
        self.trouble = trouble
        self._metadata_save.messages.clear()
        self._proposals.drop(self._refusal())
        self._observer.failed(trouble)

    def _go_on(self, *, is_full: bool) -> None:
        """Pass queued input to the core after a save. On a full disk the next tick or command retries the save."""
        has_told = self._tell_inputs()
        while self._metadata_save.messages and not self.trouble:
            self._raft.step(self._metadata_save.messages.popleft())
        if self._metadata_save.take_tick() and not (is_full or self.trouble):
            # At most one tick: peers' messages of that time arrive only now.
            self._raft.tick()
        if has_told:
            self._full = ""
        self._pump()

    def _tell_inputs(self) -> bool:
        """Pass queued input to the core. Return True if there was any."""
        has_told = False
        self._is_acting = True  # a command that a refusal triggers is queued behind the others
        while (given := self._metadata_save.next_input()) is not None:
            has_told = True
            if self.trouble:
                given.refuse(self._refusal())
            else:
                self._tell_core(given)
        self._is_acting = False
        return has_told

    def _miss(self, error: NotWrittenError) -> None:
        if self._raft.is_leader:  # a leader decides only what it has saved itself
            return
        if not self._missed and not self.is_alone:
            self._outbox.notice(f"the metadata cannot be saved, and this broker has no part until it can: {error}")
        self._missed = f"the metadata cannot be saved: {error}"

    def _retract(self, ready: Ready, error: NotWrittenError) -> None:
        for entry in self._raft.retract(ready):
            self._proposals.resolve(entry, RemoteError(ErrorCode.STORAGE_FAILED, str(error)), self._raft.leader)

    def _have_another_lead(self, error: NotWrittenError) -> None:
        """Ask the next voter, round robin, to lead: this leader's disk is full, that voter's may not be.

        The request goes out with the next tick; commands that arrive here until then are forwarded to it.
        """
        if not self.is_leader or self._waits_ticks:
            return
        live = self.image.live_brokers()
        others = [one for one in self.membership.voters if one in live and one != self._raft.id]
        others = sorted(one for one in others if self.match_index(one) >= self._raft.commit)
        if others:
            to = next((one for one in others if one > self._raft.id), others[0])
            self._outbox.notice(f"{error}; broker {to} is asked to be the metadata leader")
            self._waits_ticks = limits.METADATA_HAND_OVER_MS // limits.RAFT_TICK_MS
            self._raft.transfer(to)

    def _act_on(self, ready: Ready) -> None:
        self._is_acting = True
        self.peer_fencing.note(ready.entries)
        self.cluster_formation.note(ready.entries)
        for message in ready.messages:
            answered = None if self.peer_fencing.is_registered else partial(self._observer.answered, message.to)
            self._peers.send(message.to, self.peer_fencing.request(message), encode_message(message), answered)
        if ready.snapshot is not None:
            self._replace(ready.snapshot)
        for entry in ready.committed:
            self._apply(entry)
        for read in ready.reads:
            if (confirmed := self._confirmations.pop(read.context, None)) is not None:
                confirmed(None)
        self._raft.advance(ready)
        self._is_acting = False
        if ready.snapshot is not None:
            self._proposals.replaced(ready.snapshot.index)

    def _replace(self, snapshot: Snapshot) -> None:
        try:
            image = image_in(snapshot, self._context.settings.broker_version)
        except (OperationalError, RemoteError) as error:
            self._end(str(error))
            return
        before, self._context.image = self.image, image
        self._observer.replaced(before)

    def _apply(self, entry: Entry) -> None:
        if self.trouble:
            return
        outcome: CommandOutcome | RemoteError = CommandOutcome(changed=True)
        if entry.kind is EntryKind.COMMAND:
            try:
                version = self._context.settings.broker_version
                self._context.image, command, outcome = applied(self.image, entry, version)
            except TooOldError as error:
                if self._is_starting:
                    raise
                self._end(str(error))
                return
            self._observer.applied(EntryPosition(entry.index, entry.term), command, outcome)
        elif entry.kind is EntryKind.LEADERSHIP and entry.term == self._raft.term and self._raft.is_leader:
            self._current_term = entry.term
        self._proposals.resolve(entry, outcome, self._raft.leader)

    def _tell_leadership(self) -> None:
        leads = self._raft.is_leader and self.leader == self._raft.id
        if self._told_term and (not leads or self._told_term != self._raft.term):
            self._told_term = 0
            confirmations, self._confirmations = self._confirmations, {}
            for done in confirmations.values():
                done(NotLeaderError(self.leader))
            self._observer.metadata_leadership_lost()
        if (
            leads
            and self._current_term == self._raft.term
            and not (self._told_term or self._metadata_save.is_under_way)
        ):
            self._told_term = self._raft.term
            self._observer.metadata_leadership_gained()

    def _note(self, happens: Callable[[], None]) -> None:
        """Run `happens` during a save, and fail queued requests if this broker no longer leads.

        Requests already passed to the core stay there. The observer is notified again if this broker still leads
        afterwards.
        """
        before = self.missed
        happens()
        if self.missed not in ("", before):
            self._outbox.notice(f"{self.missed}: this broker has no part until it has")
        self._tell_leadership()
        if self.leader != self._raft.id:
            for given in self._metadata_save.take_inputs():
                given.refuse(self._refusal())

    def _compact(self) -> None:
        """Replace a long log by a snapshot of the image."""
        log_bytes = self._storage.log_bytes
        if log_bytes < max(limits.METADATA_LOG_BYTES_MAX, self._vain_bytes + 1):
            return
        if self._metadata_save.is_under_way or self.trouble or self._raft.has_ready():
            return
        task = self._storage.save_snapshot(self._raft.compact(self._raft.applied, encode_image(self.image)))
        self._metadata_save.begin()

        def done(error: Exception | None) -> None:
            self._metadata_save.end()
            if error is None:
                self._storage.saved(task)
            else:
                self._has_failed(task, error)
            self._vain_bytes = 0 if error is None else log_bytes
            self._go_on(is_full=error is not None)

        self._run(task, done)

    def keep_reserve(self) -> None:
        """Restore the disk reserve as far as there is room. Cheap if none is missing."""
        self._storage.keep_reserve()

    def stop(self, error: RemoteError) -> None:
        """Fail pending changes and close the storage."""
        for given in self._metadata_save.take_inputs():
            given.refuse(error)
        self._proposals.drop(error)
        if not self._metadata_save.is_under_way:  # else a save hangs: leave the files as after a crash
            self._storage.close()
