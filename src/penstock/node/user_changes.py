"""Users and rules as the metadata leader changes them.

Rules: the first user makes everybody log in, brokers too: so there is none before all brokers know each other's secret,
and all are of a version that knows what a user is.

    asked ─▶ may they? ─▶ proposed ─▶ applied ─▶ by every live broker ─▶ answered

What checks users' secrets is told here, too: who is told is written down first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.access import Credential, User
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
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
from penstock.metadata.image import ClusterImage, Outcome
from penstock.metadata.since import unknown_to
from penstock.metadata.users import check_alter_user, check_change_rules, check_create_user, check_way_in
from penstock.node.access import Access
from penstock.node.applied import AppliedByAll
from penstock.node.exporting import exported
from penstock.node.peers import Peers
from penstock.node.quorum import Quorum

UserChange = CreateUserRequest | AlterUserRequest | DeleteUserRequest | ChangeRulesRequest
Done = Callable[[Response | RemoteError], None]

_ANSWERS: dict[type[Request], type[UserChangedResponse]] = {
    CreateUserRequest: CreateUserResponse,
    AlterUserRequest: AlterUserResponse,
    DeleteUserRequest: DeleteUserResponse,
    ChangeRulesRequest: ChangeRulesResponse,
}


class UserChanges:
    """For the metadata leader."""

    def __init__(
        self,
        quorum: Quorum,
        peers: Peers,
        broker_id: BrokerId,
        clock: Callable[[], Now],
        access: Access,
        chance: Any,
    ) -> None:
        """`chance` is a seeded generator, such as random.Random."""
        self._chance = chance
        self._quorum = quorum
        self._peers = peers
        self._broker_id = broker_id
        self._clock = clock
        self._access = access
        self._all = AppliedByAll(quorum, peers, broker_id, clock)

    @property
    def _image(self) -> ClusterImage:
        return self._quorum.image

    def handle(self, request: UserChange, done: Done) -> None:
        """Do what a client asks, who may; `done` hears it once."""
        deadline_us = self._clock().elapsed_us + limits.FORWARD_TIMEOUT_MS * 1_000
        answer = _ANSWERS[type(request)]

        def told(error: RemoteError) -> None:
            if error.code == ErrorCode.USER_NOT_FOUND:  # it may just have been deleted: so that it is so on all brokers
                self._all.wait(self._image.index, deadline_us, lambda _: done(error))
            else:
                done(error)

        try:
            command = self._command(request)
            check_way_in(self._image, command)
        except RemoteError as error:
            told(error)
            return
        index = 0

        def placed(at: int, raft_term: int) -> None:
            nonlocal index
            index = at

        def made(outcome: Outcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                told(outcome)
            else:  # also where it was so already: whoever asked before may not have waited for all
                changed = index if outcome.changed else 0
                self._all.wait(
                    index, deadline_us, lambda error: done(answer(index=changed) if error is None else error)
                )

        self._quorum.propose(command, made, placed)

    def export(self, request: ExportUsersRequest, done: Done) -> None:
        """Tell who may of a page of users, once it is written that he was told; `done` hears it once."""
        if not self._image.users:
            done(exported(self._image, request.after))
            return

        look_again = self._access.again(request)

        def noted(outcome: Outcome | RemoteError) -> None:
            answer: Response | RemoteError
            try:
                look_again()
                answer = outcome if isinstance(outcome, RemoteError) else exported(self._image, request.after)
            except RemoteError as error:
                answer = error
            done(answer)

        after = request.after[: limits.USER_NAME_CHARS_MAX]
        by = "" if self._access.who is None else self._access.who.name
        self._quorum.propose(ExportUsers(exported_us=self._clock().wall_us, after=after, by=by), noted)

    def _command(self, request: UserChange) -> CreateUser | AlterUser | DeleteUser | ChangeRules:
        now_us = self._clock().wall_us
        by = "" if self._access.who is None else self._access.who.name
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
        """The command that makes a user. RemoteError: it cannot be made, or everybody cannot log in yet."""
        check_create_user(self._image, user)
        chance = b"" if self._image.users else self._chance.randbytes(32)
        command = CreateUser(user=user, created_us=user.created_us, by=by, is_first=is_first, chance=chance)
        if (error := unknown_to(self._image.brokers.values(), command)) is not None:
            raise error
        if not (self._image.users or is_set_up):
            self._check_ready()
        return command

    def _check_ready(self) -> None:
        """RemoteError change_refused: from the first user on, some broker of the cluster would not be let in."""
        live = self._image.live_brokers()
        away = sorted(broker_id for broker_id in self._image.brokers if broker_id not in live)
        if away:  # what it goes by when it comes back, it would have from whoever is there first
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
        """Time has passed."""
        self._all.tick(now)

    @property
    def next_deadline_us(self) -> int | None:
        """When `tick` has something to do, at the latest."""
        return self._all.next_deadline_us

    def stop(self, error: RemoteError) -> None:
        """This broker leads the metadata no more, or stops."""
        self._all.stop(error)


def _since(now_us: int, credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
    """They are made now, whatever clock the client has."""
    return tuple(msgspec.structs.replace(one, created_us=now_us) for one in credentials)
