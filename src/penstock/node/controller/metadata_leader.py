"""The duties of the metadata leader: controller commands, clients' metadata changes, Raft membership.

Rules: every decision follows from the applied image and is proposed, again if it was refused. A broker that returns
with another disk leaves the Raft group before it is registered, because it has lost its votes; afterwards it joins like
any new broker. A broker that returns with a shorter log than it acknowledged in this term runs on an older copy of its
disk, and is refused. (A broker that has seen a later term may rightly have truncated what it acknowledged in this one.)

| a live broker is | becomes   | when                                                                         |
|------------------|-----------|------------------------------------------------------------------------------|
| no member        | a learner | at once                                                                      |
| a learner        | a voter   | it has the log, and there are fewer voters than the largest odd number of    |
|                  |           | members, up to RAFT_VOTERS_MAX; and its turn has come (`metadata.voters`)    |
| member, new disk | no member | it asks to be registered                                                     |
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.base.subjects import AUDIT_STREAM
from penstock.messages import (
    AddCompanionRequest,
    ChangeIsrRequest,
    CreateStreamRequest,
    ExportUsersRequest,
    HeartbeatRequest,
    MarkKeysRequest,
    RaiseFeatureLevelRequest,
    RecordDeletionRequest,
    RegisterBrokerRequest,
    ReportApiRequest,
    Request,
    Response,
    StopBrokerRequest,
    TakeApiRequest,
)
from penstock.metadata.commands import Command, FormCluster
from penstock.metadata.controller.command_proposals import Proposal
from penstock.metadata.controller.controller import Controller, RaftContact
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.voters import next_voter
from penstock.node.context import Context
from penstock.node.controller.api_admin import ApiAdmin
from penstock.node.controller.audit import audit_config
from penstock.node.controller.feature_level_admin import FeatureLevelAdmin
from penstock.node.controller.stream_admin import StreamAdmin
from penstock.node.controller.user_admin import UserAdmin, UserChange
from penstock.node.partition.internal_streams import left_over, overdue_alteration, target_of
from penstock.node.quorum.metadata_forwarding import THE_BROKER, Administrative
from penstock.node.quorum.quorum import Quorum
from penstock.node.security.access import Access
from penstock.raft import RaftMembership

Done = Callable[[Response | RemoteError], None]
_LAG_MAX = limits.PROMOTION_LAG_MAX


class _ConfirmedAnswer:
    """Sends a heartbeat's answer once a majority confirms that this broker still leads: it may have been deposed."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._response: Response | RemoteError | None = None
        self._is_confirmed = self._is_given = False

    def answered(self, response: Response | RemoteError) -> None:
        """Take the controller's answer."""
        self._response = response
        if self._is_confirmed or isinstance(response, RemoteError):
            self._give(response)

    def confirmed(self, error: RemoteError | None) -> None:
        """Take the quorum's confirmation; `error` says that this broker does not lead."""
        self._is_confirmed = error is None
        if error is not None or self._response is not None:
            self._give(error or self._response)

    def _give(self, response: Response | RemoteError | None) -> None:
        if not self._is_given:
            assert response is not None
            self._is_given = True
            self._done(response)


class _Duty(Enum):
    """States that the metadata leader restores by itself; of each, one change at a time is under way."""

    NAME = "the cluster has a name"
    FIRST_USER = "a cluster that requires a login has a user"
    AUDIT = "a cluster with users has an audit log"
    OFFSETS_CONFIG = "`__offsets` has the config of this version"
    REPLICAS = "internal streams have enough replicas"
    STAGED_ROWS = "a deleted stream has no staged rows"
    MEMBERSHIP = "live brokers are members of the Raft group, and enough of them vote"


class MetadataLeader:
    """One per broker; decides only while this broker is the metadata leader. `cluster_id` names a new cluster."""

    def __init__(
        self,
        context: Context,
        quorum: Quorum,
        controller: Controller,
        administration: StreamAdmin,
        users: UserAdmin,
        levels: FeatureLevelAdmin,
        apis: ApiAdmin,
        access: Access,
    ) -> None:
        self._quorum = quorum
        self._controller = controller
        self._administration = administration
        self._users = users
        self._levels = levels
        self._apis = apis
        self._access = access
        self._broker_id = context.settings.broker_id
        self._cluster_id = context.settings.cluster_id or context.settings.data_dir_id
        self._broker_version = context.settings.broker_version
        self._context = context
        self._first_user = context.settings.first_user
        self._encryption = context.settings.internal_encryption
        self._under_way: set[_Duty] = set()
        self._may_be_left_over = False  # staged rows of a deleted stream, or a stream for them

    def lead(self) -> None:
        """Begin to act: this broker was elected and has applied the entries of all earlier terms."""
        self._under_way = set()  # what an earlier leadership began, ends in the set of that one
        self._may_be_left_over = True
        self._controller.lead(self._quorum.image, self._quorum.term, self._context.now)
        self._form()
        self._make_first_user()
        self._alter_offsets()
        self._sweep()
        self.carry_out()

    def silent_us(self, now: Now) -> dict[BrokerId, int]:
        """Microseconds since this metadata leader heard of each live broker; empty if this broker is not the leader."""
        return self._controller.silent_us(now)

    # Duties

    def _may(self, duty: _Duty) -> bool:
        """True if this broker leads, and nothing of the duty is under way."""
        return self._quorum.is_leader and duty not in self._under_way

    def _begin(self, duty: _Duty) -> Callable[[object], None]:
        """Note that a duty is under way. The result ends it; refused, as by a full disk, the next tick retries."""
        under_way = self._under_way
        under_way.add(duty)
        return lambda outcome: under_way.discard(duty)

    def _propose_for(self, duty: _Duty, command: Command) -> None:
        self._quorum.propose(command, self._begin(duty))

    @property
    def has_to_form(self) -> bool:
        """True if the cluster lacks a name, the first user or `__audit` and none is under way; `tick` creates it."""
        return self._lacks_name or self._lacks_user or self._lacks_audit

    @property
    def _lacks_name(self) -> bool:
        has_name = self._quorum.image.cluster_id or self._quorum.cluster_formation.elder is not None
        return self._may(_Duty.NAME) and not has_name

    def _form(self) -> None:
        """Give the cluster its id; a new one begins at the newest feature level of its brokers."""
        if self._lacks_name:
            level = self._quorum.cluster_formation.first_level(self._broker_version)
            self._propose_for(_Duty.NAME, FormCluster(cluster_id=self._cluster_id, feature_level=level))

    @property
    def _lacks_user(self) -> bool:
        image = self._quorum.image
        is_wanted = self._first_user is not None and not image.users and bool(image.cluster_id)
        return is_wanted and self._may(_Duty.FIRST_USER)

    def _make_first_user(self) -> None:
        """Create the first user of a cluster that requires login: otherwise no user could log in."""
        if not self._lacks_user:
            return
        assert self._first_user is not None
        user = self._first_user()
        try:
            command = self._users.creation(user, is_first=True, is_set_up=True)
        except RemoteError:  # a broker of an earlier version is in the cluster: a later tick retries
            return
        self._propose_for(_Duty.FIRST_USER, command)

    @property
    def _lacks_audit(self) -> bool:
        image = self._quorum.image
        return bool(image.users) and AUDIT_STREAM not in image.names and self._may(_Duty.AUDIT)

    def _make_audit(self) -> None:
        """Create the stream that records administrative actions, from the first user on."""
        if self._lacks_audit:
            request = CreateStreamRequest(config=audit_config(self._encryption))
            self._administration.handle(request, self._access.of(THE_BROKER), self._begin(_Duty.AUDIT))

    def _alter_offsets(self) -> None:
        """Alter `__offsets` to the config that this version gives it."""
        if not self._may(_Duty.OFFSETS_CONFIG):
            return
        if (command := overdue_alteration(self._quorum.image, self._broker_version)) is not None:
            self._propose_for(_Duty.OFFSETS_CONFIG, command)

    def _widen(self) -> None:
        """Add replicas to internal streams, one change at a time, while enough brokers are registered."""
        if self._may(_Duty.REPLICAS) and (command := self._administration.wider()) is not None:
            self._propose_for(_Duty.REPLICAS, command)

    def _sweep(self) -> None:
        """Delete the staged rows of deleted streams, one stream after the other."""
        if not self._may_be_left_over or not self._may(_Duty.STAGED_ROWS):
            return
        command = left_over(self._quorum.image)
        if command is None:
            self._may_be_left_over = False
        else:
            self._propose_for(_Duty.STAGED_ROWS, command)

    def follow(self, leader: BrokerId | None) -> None:
        """Stop acting: this broker no longer leads."""
        self._controller.follow(leader)
        self.carry_out()
        text = "the metadata leader has changed; ask again"
        error = RemoteError(ErrorCode.NOT_METADATA_LEADER, text, leader=leader)
        self._administration.stop(error)
        self._users.stop(error)
        self._levels.stop(error)

    def applied(self, index: int, raft_term: int, image: ClusterImage, outcome: CommandOutcome | RemoteError) -> None:
        """Handle an applied command."""
        self._controller.applied(index, raft_term, image, outcome, self._context.now)
        self._alter_offsets()
        if isinstance(outcome, CommandOutcome) and outcome.changed and outcome.stream is not None:
            self._may_be_left_over |= outcome.deleted or target_of(outcome.stream) is not None
        self._sweep()
        self.carry_out()

    def request(self, request: Request, done: Done, who: Principal | None = THE_BROKER) -> None:
        """Answer a broker, or a client that is logged in as `who`."""
        now = self._context.now
        if isinstance(request, HeartbeatRequest):
            answer = _ConfirmedAnswer(done)
            self._controller.heartbeat(answer.answered, request, self._quorum.commit, now)
            # before the controller's commands, of which the broker learns later
            self._quorum.confirm(answer.confirmed)
        elif isinstance(request, RegisterBrokerRequest):
            self._register(request, done, now)
        elif isinstance(request, ReportApiRequest):
            self._controller.report_api(done, request, now)
        elif isinstance(request, ChangeIsrRequest):
            self._controller.change_isr(done, request)
        elif isinstance(request, MarkKeysRequest):
            self._administration.mark_keys(request, done)
        elif isinstance(request, AddCompanionRequest):
            self._administration.add_companion(request, done)
        elif isinstance(request, RecordDeletionRequest):
            self._administration.record_deletion(request, done)
        elif isinstance(request, StopBrokerRequest):
            self._controller.stop_broker(done, request, now)
        else:
            assert isinstance(request, Administrative), request
            self._administer(request, done, who)
        self.carry_out()

    def _administer(self, request: Administrative, done: Done, who: Principal | None) -> None:
        """Check permissions here, before a proposal: the broker that was asked may lag behind a change of rules."""
        try:
            auth = self._access.of(who)
            auth.check(request)
            if isinstance(request, UserChange):
                self._users.handle(request, auth, done)
            elif isinstance(request, ExportUsersRequest):
                self._users.export(request, auth, done)
            elif isinstance(request, RaiseFeatureLevelRequest):
                self._levels.handle(request, auth, done)
            elif isinstance(request, TakeApiRequest):
                self._apis.handle(request, auth, done)
            else:
                self._administration.handle(request, auth, done)
        except RemoteError as error:
            done(error)

    def carry_out(self) -> None:
        """Propose the controller's commands and send its answers."""
        while (step := self._controller.take()).propose or step.answers:
            for proposal in step.propose:
                self._propose(proposal)
            for answer in step.answers:
                assert callable(answer.caller)
                answer.caller(answer.response)

    def _propose(self, proposal: Proposal) -> None:
        def placed(index: int, raft_term: int) -> None:
            self._controller.proposed(proposal.number, index, raft_term)

        def done(outcome: CommandOutcome | RemoteError) -> None:
            # The controller learns of applied commands, refused or not, from `applied`.
            if isinstance(outcome, RemoteError):
                self._controller.not_proposed(proposal.number, outcome)

        self._quorum.propose(proposal.command, done, placed)

    # Membership

    def _register(self, request: RegisterBrokerRequest, done: Done, now: Now) -> None:
        known = self._quorum.image.brokers.get(request.broker_id)
        is_live = known is not None and known.is_live
        is_other_disk = self._quorum.disk_of(request.broker_id) not in ("", request.data_dir_id)
        if is_live or not (is_other_disk and request.broker_id in self._quorum.membership):
            self._controller.register(done, request, now, self._heard_of(request))
            return

        def left(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
            else:
                self._controller.register(done, request, self._context.now)
                self.carry_out()

        self._change(_without(self._quorum.membership, request.broker_id), left)

    def _heard_of(self, request: RegisterBrokerRequest) -> RaftContact:
        broker_id = request.broker_id
        index, raft_term = self._quorum.peer_fencing.acknowledged(broker_id, request.process)
        knows = self._quorum.disk_of(broker_id) == request.data_dir_id and request.raft_term <= raft_term
        return RaftContact(index if knows else 0, self._quorum.peer_fencing.lately(broker_id))

    def _change(self, membership: RaftMembership, done: Callable[[CommandOutcome | RemoteError], None]) -> None:
        ended = self._begin(_Duty.MEMBERSHIP)

        def changed(outcome: CommandOutcome | RemoteError) -> None:
            ended(outcome)
            done(outcome)

        self._quorum.change_membership(membership, changed)

    def tick(self, now: Now) -> None:
        # else there are no other brokers to miss, and this broker does not even send itself heartbeats
        if not self._quorum.is_alone:
            self._controller.tick(now)
        else:
            self._controller.decide_apis(now)
        self.carry_out()
        self._form()
        self._make_first_user()
        self._make_audit()
        self._alter_offsets()
        self._widen()
        self._sweep()
        self._administration.tick(now)
        self._users.tick(now)
        self._levels.tick(now)
        if self._may(_Duty.MEMBERSHIP):
            wanted = self._wanted()
            if wanted != self._quorum.membership:
                self._change(wanted, lambda outcome: None)

    def _wanted(self) -> RaftMembership:
        """Return the membership with the next change that is due."""
        membership = self._quorum.membership
        live = sorted(self._quorum.image.live_brokers())
        for broker_id in live:
            if broker_id not in membership:
                return RaftMembership(membership.voters, tuple(sorted((*membership.learners, broker_id))))
        members = len(membership.voters) + sum(learner in live for learner in membership.learners)
        voters = min(limits.RAFT_VOTERS_MAX, members - (members + 1) % 2)
        if len(membership.voters) >= voters:
            return membership
        learners = [one for one in membership.learners if one in live]
        ready = [one for one in learners if self._quorum.match_index(one) + _LAG_MAX >= self._quorum.commit]
        chosen = next_voter(self._quorum.image, membership.voters, learners, ready, voters)
        if chosen is None:
            return membership
        left = tuple(one for one in membership.learners if one != chosen)
        return RaftMembership(tuple(sorted((*membership.voters, chosen))), left)


def _without(membership: RaftMembership, broker_id: BrokerId) -> RaftMembership:
    return RaftMembership(
        tuple(one for one in membership.voters if one != broker_id),
        tuple(one for one in membership.learners if one != broker_id),
    )
