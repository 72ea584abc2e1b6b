"""What this broker does as the metadata leader: the controller's commands, clients' changes, who takes part in Raft.

Rules: everything that is decided here follows from what is applied, and is proposed, again where it was refused. A
broker that returns with another disk leaves the Raft group before it is registered with it, because it has forgotten
whom it voted for; afterwards it comes in as any new broker does. One that returns with less of the log than it has
acknowledged in this term has an older copy of its disk, and is refused. (One that has come to a later term may have
given up, rightly, what it acknowledged in this one.)

| a live broker is | becomes   | when                                                                         |
|------------------|-----------|------------------------------------------------------------------------------|
| no member        | a learner | at once                                                                      |
| a learner        | a voter   | it has the log, and there are fewer voters than the largest odd number of    |
|                  |           | members, up to RAFT_VOTERS_MAX; and its turn has come (`metadata.voters`)    |
| member, new disk | no member | it asks to be registered                                                     |
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.base.subjects import AUDIT_STREAM
from penstock.messages import (
    ChangeIsrRequest,
    CreateStreamRequest,
    ExportUsersRequest,
    HeartbeatRequest,
    MarkKeysRequest,
    RegisterBrokerRequest,
    Request,
    Response,
    StopBrokerRequest,
)
from penstock.metadata.commands import FormCluster
from penstock.metadata.controller import Controller, HeardOf
from penstock.metadata.image import ClusterImage, Outcome
from penstock.metadata.proposals import Proposal
from penstock.metadata.voters import next_voter
from penstock.node.access import Access
from penstock.node.administration import Administration
from penstock.node.audit import audit_config
from penstock.node.internal import left_over, overdue_alteration, target_of
from penstock.node.metadata_link import THE_BROKER, Administrative
from penstock.node.quorum import Quorum
from penstock.node.settings import Settings
from penstock.node.user_changes import UserChange, UserChanges
from penstock.raft import Membership

Done = Callable[[Response | RemoteError], None]
_LAG_MAX = limits.PROMOTION_LAG_MAX


class _ConfirmedAnswer:
    """What a broker hears of a heartbeat, once most voters say that this one still leads: it may have been deposed."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._response: Response | RemoteError | None = None
        self._is_confirmed = self._is_given = False

    def answered(self, response: Response | RemoteError) -> None:
        """The controller's answer."""
        self._response = response
        if self._is_confirmed or isinstance(response, RemoteError):
            self._give(response)

    def confirmed(self, error: RemoteError | None) -> None:
        """Whether this broker leads; the error says that it does not."""
        self._is_confirmed = error is None
        if error is not None or self._response is not None:
            self._give(error or self._response)

    def _give(self, response: Response | RemoteError | None) -> None:
        if not self._is_given:
            assert response is not None
            self._is_given = True
            self._done(response)


class MetadataLeader:
    """One on each broker; it decides where `lead` was called. `cluster_id` names a cluster that has no name yet."""

    def __init__(
        self,
        quorum: Quorum,
        controller: Controller,
        administration: Administration,
        users: UserChanges,
        access: Access,
        settings: Settings,
        clock: Callable[[], Now],
    ) -> None:
        self._quorum = quorum
        self._controller = controller
        self._administration = administration
        self._users = users
        self._access = access
        self._broker_id = settings.broker_id
        self._cluster_id = settings.cluster_id or settings.data_dir_id
        self._broker_version = settings.broker_version
        self._clock = clock
        self._is_changing = False  # the membership
        self._is_forming = False  # the cluster: its name is on its way
        self._is_altering = False  # `__offsets`
        self._is_widening = False  # one of the streams that Penstock keeps for itself
        self._first_user = settings.first_user
        self._encryption = settings.internal_encryption
        self._is_making = False  # the first user
        self._is_auditing = False  # `__audit` is being made
        self._is_sweeping = False  # what is staged for streams that are gone
        self._may_be_left_over = False

    def lead(self) -> None:
        """This broker is the metadata leader, and has applied all of earlier terms."""
        self._is_changing = self._is_forming = self._is_altering = self._is_sweeping = False
        self._is_making = self._is_auditing = self._is_widening = False
        self._may_be_left_over = True
        self._controller.lead(self._quorum.image, self._quorum.term, self._clock())
        self._form()
        self._make_first_user()
        self._alter_offsets()
        self._sweep()
        self.carry_out()

    def _form(self) -> None:
        if not self._lacks_name:
            return

        def done(outcome: Outcome | RemoteError) -> None:
            self._is_forming = False  # refused, as by a full disk: with the next tick again

        self._is_forming = True
        self._quorum.propose(FormCluster(cluster_id=self._cluster_id), done)

    @property
    def has_to_form(self) -> bool:
        """Whether the cluster lacks a name, or its first user, and none is on its way: `tick` gives it one."""
        return self._lacks_name or self._lacks_user or self._lacks_audit

    @property
    def _lacks_audit(self) -> bool:
        image = self._quorum.image
        is_wanted = bool(image.users) and AUDIT_STREAM not in image.names and not self._is_auditing
        return is_wanted and self._quorum.is_leader

    def _make_audit(self) -> None:
        """What is done from the first user on is told."""
        if not self._lacks_audit:
            return

        def done(response: Response | RemoteError) -> None:
            self._is_auditing = False  # refused, as where brokers are away: with the next tick again

        self._is_auditing = True
        self._access.who = THE_BROKER
        self._administration.handle(CreateStreamRequest(config=audit_config(self._encryption)), done)

    @property
    def _lacks_name(self) -> bool:
        has_name = self._quorum.image.cluster_id or self._is_forming or self._quorum.forming.elder is not None
        return self._quorum.is_leader and not has_name

    @property
    def _lacks_user(self) -> bool:
        is_wanted = self._first_user is not None and not self._is_making and not self._quorum.image.users
        return is_wanted and self._quorum.is_leader and bool(self._quorum.image.cluster_id)

    def _make_first_user(self) -> None:
        """Set the cluster up: somebody must be able to log in where everybody has to."""
        if not self._lacks_user:
            return
        assert self._first_user is not None

        def done(outcome: Outcome | RemoteError) -> None:
            self._is_making = False  # refused, as by a full disk: with the next tick again

        user = self._first_user()
        try:
            command = self._users.creation(user, is_first=True, is_set_up=True)
        except RemoteError:  # a broker of an earlier version is in the cluster: with a later tick again
            return
        self._is_making = True
        self._quorum.propose(command, done)

    def _alter_offsets(self) -> None:
        """Have `__offsets` be as this version makes it."""
        if self._is_altering or not self._quorum.is_leader:
            return
        command = overdue_alteration(self._quorum.image, self._broker_version)
        if command is None:
            return

        def done(outcome: Outcome | RemoteError) -> None:
            self._is_altering = False  # refused, as by a full disk: with what is applied next, or the next tick, again

        self._is_altering = True
        self._quorum.propose(command, done)

    def _widen(self) -> None:
        """Have Penstock's own streams held by as many brokers as there are for that, step by step."""
        if self._is_widening or not self._quorum.is_leader or (command := self._administration.wider()) is None:
            return

        def done(outcome: Outcome | RemoteError) -> None:
            self._is_widening = False  # with the next tick the next step, or the same again

        self._is_widening = True
        self._quorum.propose(command, done)

    def _sweep(self) -> None:
        """Delete what is staged for streams that are gone, one after the other."""
        if not self._may_be_left_over or self._is_sweeping or not self._quorum.is_leader:
            return
        command = left_over(self._quorum.image)
        if command is None:
            self._may_be_left_over = False
            return

        def done(outcome: Outcome | RemoteError) -> None:
            self._is_sweeping = False

        self._is_sweeping = True
        self._quorum.propose(command, done)

    def follow(self, leader: BrokerId | None) -> None:
        """It is no more."""
        self._controller.follow(leader)
        self.carry_out()
        text = "the metadata leader has changed; ask again"
        error = RemoteError(ErrorCode.NOT_METADATA_LEADER, text, leader=leader)
        self._administration.stop(error)
        self._users.stop(error)

    def applied(self, index: int, raft_term: int, image: ClusterImage, outcome: Outcome | RemoteError) -> None:
        """A command was applied."""
        self._controller.applied(index, raft_term, image, outcome, self._clock())
        self._alter_offsets()
        if isinstance(outcome, Outcome) and outcome.changed and outcome.stream is not None:
            self._may_be_left_over |= outcome.deleted or target_of(outcome.stream) is not None
        self._sweep()
        self.carry_out()

    def request(self, request: Request, done: Done, who: Principal | None = THE_BROKER) -> None:
        """Answer a broker, or a client whose request it was, and who has logged in as `who`."""
        now = self._clock()
        if isinstance(request, HeartbeatRequest):
            answer = _ConfirmedAnswer(done)
            self._controller.heartbeat(answer.answered, request, self._quorum.commit, now)
            self._quorum.confirm(answer.confirmed)  # before what the heartbeat calls for: it is told of that later
        elif isinstance(request, RegisterBrokerRequest):
            self._register(request, done, now)
        elif isinstance(request, ChangeIsrRequest):
            self._controller.change_isr(done, request)
        elif isinstance(request, MarkKeysRequest):
            self._administration.mark_keys(request, done)
        elif isinstance(request, StopBrokerRequest):
            self._controller.stop_broker(done, request, now)
        else:
            assert isinstance(request, Administrative), request
            self._administer(request, done, who)
        self.carry_out()

    def _administer(self, request: Administrative, done: Done, who: Principal | None) -> None:
        """Here, and before anything is proposed: the broker that was asked may not have heard of a change of rules."""
        try:
            self._access.check(who, request)
            if isinstance(request, UserChange):
                self._users.handle(request, done)
            elif isinstance(request, ExportUsersRequest):
                self._users.export(request, done)
            else:
                self._administration.handle(request, done)
        except RemoteError as error:
            done(error)

    def carry_out(self) -> None:
        """Do what the controller has decided."""
        while (step := self._controller.take()).propose or step.answers:
            for proposal in step.propose:
                self._propose(proposal)
            for answer in step.answers:
                assert callable(answer.caller)
                answer.caller(answer.response)

    def _propose(self, proposal: Proposal) -> None:
        def placed(index: int, raft_term: int) -> None:
            self._controller.proposed(proposal.number, index, raft_term)

        def done(outcome: Outcome | RemoteError) -> None:
            # What was applied, refused or not, the controller has heard with everybody.
            if isinstance(outcome, RemoteError):
                self._controller.not_proposed(proposal.number, outcome)

        self._quorum.propose(proposal.command, done, placed)

    # Who takes part

    def _register(self, request: RegisterBrokerRequest, done: Done, now: Now) -> None:
        known = self._quorum.image.brokers.get(request.broker_id)
        is_live = known is not None and known.is_live
        is_other_disk = self._quorum.disk_of(request.broker_id) not in ("", request.data_dir_id)
        if is_live or not (is_other_disk and request.broker_id in self._quorum.membership):
            self._controller.register(done, request, now, self._heard_of(request))
            return

        def left(outcome: Outcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                done(outcome)
            else:
                self._controller.register(done, request, self._clock())
                self.carry_out()

        self._change(_without(self._quorum.membership, request.broker_id), left)

    def _heard_of(self, request: RegisterBrokerRequest) -> HeardOf:
        broker_id = request.broker_id
        index, raft_term = self._quorum.speakers.acknowledged(broker_id, request.process)
        knows = self._quorum.disk_of(broker_id) == request.data_dir_id and request.raft_term <= raft_term
        return HeardOf(index if knows else 0, self._quorum.speakers.lately(broker_id))

    def _change(self, membership: Membership, done: Callable[[Outcome | RemoteError], None]) -> None:
        self._is_changing = True

        def changed(outcome: Outcome | RemoteError) -> None:
            self._is_changing = False
            done(outcome)

        self._quorum.change_membership(membership, changed)

    def tick(self, now: Now) -> None:
        """Some time has passed."""
        if not self._quorum.is_alone:  # else nobody is to be missed: this broker does not even send itself heartbeats
            self._controller.tick(now)
            self.carry_out()
        self._form()
        self._make_first_user()
        self._make_audit()
        self._alter_offsets()
        self._widen()
        self._sweep()
        self._administration.tick(now)
        self._users.tick(now)
        if self._quorum.is_leader and not self._is_changing:
            wanted = self._wanted()
            if wanted != self._quorum.membership:
                self._change(wanted, lambda outcome: None)

    def _wanted(self) -> Membership:
        """The membership, with the next change that is due."""
        membership = self._quorum.membership
        live = sorted(self._quorum.image.live_brokers())
        for broker_id in live:
            if broker_id not in membership:
                return Membership(membership.voters, tuple(sorted((*membership.learners, broker_id))))
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
        return Membership(tuple(sorted((*membership.voters, chosen))), left)


def _without(membership: Membership, broker_id: BrokerId) -> Membership:
    return Membership(
        tuple(one for one in membership.voters if one != broker_id),
        tuple(one for one in membership.learners if one != broker_id),
    )
