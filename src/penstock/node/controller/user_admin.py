"""Changes of users and rules, by the metadata leader.

Rules: the first user turns authentication on, for brokers too: so it is created only if all brokers have proved that
they know the cluster's secret, and all run a version that knows users.

    asked ─▶ authorised? ─▶ proposed ─▶ applied ─▶ by every live broker ─▶ answered

Exports of the secrets' verifiers are served here, too: each export is recorded before it is answered.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.access import Credential, User
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    AlterUserRequest,
    AlterUserResponse,
    ChangeRulesRequest,
    ChangeRulesResponse,
    CreateUserRequest,
    CreateUserResponse,
    DeleteUserRequest,
    DeleteUserResponse,
    ExportUsersRequest,
    Request,
    Response,
    UserChangedResponse,
)
from penstock.metadata.commands import AlterUser, ChangeRules, CreateUser, DeleteUser, ExportUsers
from penstock.metadata.effects.users import check_alter_user, check_change_rules, check_create_user, check_way_in
from penstock.metadata.feature_versions import unsupported_reason
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.node.context import Context
from penstock.node.controller.apply_barriers import ClusterApplyBarrier
from penstock.node.controller.user_exports import exported
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.quorum import Quorum
from penstock.node.security.access import Authorization

UserChange = CreateUserRequest | AlterUserRequest | DeleteUserRequest | ChangeRulesRequest
Done = Callable[[Response | RemoteError], None]

_ANSWERS: dict[type[Request], type[UserChangedResponse]] = {
    CreateUserRequest: CreateUserResponse,
    AlterUserRequest: AlterUserResponse,
    DeleteUserRequest: DeleteUserResponse,
    ChangeRulesRequest: ChangeRulesResponse,
}


class UserAdmin:
    """Used by the metadata leader."""

    def __init__(self, context: Context, quorum: Quorum, peers: PeerClient) -> None:
        self._chance = context.chance
        self._quorum = quorum
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._context = context
        self._all = ClusterApplyBarrier(context, quorum, peers)

    @property
    def _image(self) -> ClusterImage:
        return self._quorum.image

    def handle(self, request: UserChange, auth: Authorization, done: Done) -> None:
        """Carry out a client's authorised request; `done` is called once."""
        deadline_us = self._context.now.elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000
        answer = _ANSWERS[type(request)]

        def told(error: RemoteError) -> None:
            if error.code == ErrorCode.USER_NOT_FOUND:  # perhaps deleted just now: wait until all brokers know
                self._all.wait(self._image.index, deadline_us, lambda _: done(error))
            else:
                done(error)

        try:
            command = self._command(request, auth)
            check_way_in(self._image, command)
        except RemoteError as error:
            told(error)
            return
        index = 0

        def placed(at: int, raft_term: int) -> None:
            nonlocal index
            index = at

        def made(outcome: CommandOutcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                told(outcome)
            else:  # also if nothing changed: an earlier request may not have waited for all brokers
                changed = index if outcome.changed else 0
                self._all.wait(
                    index, deadline_us, lambda error: done(answer(index=changed) if error is None else error)
                )

        self._quorum.propose(command, made, placed)

    def export(self, request: ExportUsersRequest, auth: Authorization, done: Done) -> None:
        """Return a page of users with their verifiers to an authorised caller, once that is recorded."""
        if not self._image.users:
            done(exported(self._image, request.after))
            return

        def noted(outcome: CommandOutcome | RemoteError) -> None:
            answer: Response | RemoteError
            try:
                auth.check(request)
                answer = outcome if isinstance(outcome, RemoteError) else exported(self._image, request.after)
            except RemoteError as error:
                answer = error
            done(answer)

        after = request.after[: limits.USER_NAME_CHARS_MAX]
        by = "" if auth.who is None else auth.who.name
        self._quorum.propose(ExportUsers(exported_us=self._context.now.wall_us, after=after, by=by), noted)

    def _command(self, request: UserChange, auth: Authorization) -> CreateUser | AlterUser | DeleteUser | ChangeRules:
        now_us = self._context.now.wall_us
        by = "" if auth.who is None else auth.who.name
        if isinstance(request, CreateUserRequest):
            own = _since(now_us, request.credentials)
            return self.creation(User(request.name, now_us, own, request.rules, request.quotas), by=by)
        if isinstance(request, AlterUserRequest):
            altering = AlterUser(
                name=request.name,
                altered_us=now_us,
                add=_since(now_us, request.add),
                drop=request.drop,
                quotas=request.quotas,
                by=by,
            )
            check_alter_user(self._image, altering)
            return altering
        if isinstance(request, DeleteUserRequest):
            self._image.user(request.name)
            return DeleteUser(name=request.name, deleted_us=now_us, by=by)
        change = ChangeRules(name=request.name, changed_us=now_us, add=request.add, drop=request.drop, by=by)
        check_change_rules(self._image, change)
        return change

    def creation(self, user: User, *, by: str = "", is_first: bool = False, is_set_up: bool = False) -> CreateUser:
        """Return the command that creates a user. Raise RemoteError if it is invalid or login must stay off."""
        check_create_user(self._image, user)
        chance = b"" if self._image.users else self._chance.randbytes(32)
        command = CreateUser(user=user, created_us=user.created_us, by=by, is_first=is_first, chance=chance)
        if (error := unsupported_reason(self._image, command)) is not None:
            raise error
        if not (self._image.users or is_set_up):
            self._check_ready()
        return command

    def _check_ready(self) -> None:
        """Raise RemoteError (change_refused) if some broker could not authenticate once there is a user."""
        live = self._image.live_brokers()
        away = sorted(broker_id for broker_id in self._image.brokers if broker_id not in live)
        if away:  # on its return it would trust the metadata of the first broker that connects
            text = (
                f"no user was made: broker {', '.join(map(str, away))} is away, and would not know of the first one. "
                "Start it first, or another one in its place"
            )
            raise RemoteError(ErrorCode.CHANGE_REFUSED, text)
        others = sorted(live - {self._broker_id})
        strangers = [broker_id for broker_id in others if not self._peers.is_proven(broker_id)]
        if strangers:
            text = (
                f"no user was made: from the first one on brokers prove to each other who they are, and broker "
                f"{', '.join(map(str, strangers))} did not. Restart all brokers with the same cluster_secret_file "
                "first, one after the other"
            )
            raise RemoteError(ErrorCode.CHANGE_REFUSED, text)

    def tick(self, now: Now) -> None:
        self._all.tick(now)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._all.next_deadline_us

    def stop(self, error: RemoteError) -> None:
        """Fail pending changes, because this broker is deposed or stops."""
        self._all.stop(error)


def _since(now_us: int, credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
    """Set the creation time to this broker's clock, whatever the client's says."""
    return tuple(msgspec.structs.replace(one, created_us=now_us) for one in credentials)
