"""Requests about users and rules that any broker answers.

Rules: the verifiers of secrets are returned only to administrators who export them, for a backup (`user_exports`).
Other users see themselves and the rules for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.access import Operation, User
from penstock.access.rules import is_admin, may_monitor, scope
from penstock.access.users import EVERYBODY
from penstock.messages import (
    CredentialInfo,
    ListUsersRequest,
    ListUsersResponse,
    Request,
    TestAccessRequest,
    TestAccessResponse,
    UserInfo,
)
from penstock.metadata.image import ClusterImage, OwnedStreams
from penstock.node.api.metadata_api import Handler
from penstock.node.context import Context
from penstock.node.controller.user_exports import page_of
from penstock.node.security.access import Access, Call


class UserApi:
    """Answers requests about users."""

    def __init__(self, context: Context, access: Access) -> None:
        self._outbox = context.outbox
        self._access = access
        self._context = context
        self.handlers: Mapping[type[Request], Handler] = {
            ListUsersRequest: self._list,
            TestAccessRequest: self._test,
        }

    def _list(self, call: Call, request: ListUsersRequest) -> None:
        users = self._context.image.users
        who = "" if call.auth.who is None else call.auth.who.name
        names = sorted(users) if call.auth.is_free else sorted({who, EVERYBODY} & set(users))
        if request.names is not None:
            names = [name for name in names if name in request.names]
        page, next_after = page_of(names, request.after)
        response = ListUsersResponse(
            users=tuple(user_info(users[name], self._context.image.owned.get(name, OwnedStreams())) for name in page),
            next_after=next_after,
            is_guarded=self._access.is_guarded,
            user=who,
        )
        self._outbox.reply(call.caller, response)

    def _test(self, call: Call, request: TestAccessRequest) -> None:
        image = self._context.image
        if not self._access.is_guarded:
            text = "this cluster has no users, so every client may do everything (`penstock user add`)"
            self._outbox.reply(call.caller, TestAccessResponse(is_allowed=True, reason=text))
            return
        image.user(request.name)
        rules = call.auth.rules(request.name)
        self._outbox.reply(call.caller, _tested(image, rules, request))


def _tested(image: ClusterImage, rules: tuple, request: TestAccessRequest) -> TestAccessResponse:  # type: ignore[type-arg]
    if is_admin(rules):
        return TestAccessResponse(is_allowed=True, reason="it is an administrator")
    if request.operation is Operation.ADMIN:
        return TestAccessResponse(is_allowed=False, reason="no rule makes it an administrator")
    if request.operation is Operation.MONITOR:
        is_allowed = may_monitor(rules)
        return TestAccessResponse(is_allowed=is_allowed, reason="monitor" if is_allowed else "no rule allows it")
    of_stream: tuple[str, ...] = (request.subject,)
    if request.stream in image.names:
        of_stream = image.by_name(request.stream).config.held_subjects
    wanted = (request.operation, request.stream, of_stream)
    scopes = {rule: scope((rule,), *wanted, group=request.group or None) for rule in rules}
    nearest = sorted((rule for rule, found in scopes.items() if found), key=lambda rule: not scopes[rule].is_all)
    subjects = tuple(one for rule in nearest for one in scopes[rule].subjects)
    asked = (request.subject,) if request.subject else None
    for rule in nearest:
        if scopes[rule].is_all:
            return TestAccessResponse(is_allowed=True, reason=str(rule))
        if scopes[rule].covers(asked):
            return TestAccessResponse(is_allowed=True, reason=str(rule), subjects=subjects)
    if scope(rules, *wanted, group=request.group or None).is_all:
        return TestAccessResponse(is_allowed=True, reason="; ".join(map(str, nearest)))
    near = f"; nearest: {', '.join(map(str, nearest))}" if nearest else ""
    return TestAccessResponse(is_allowed=False, reason=f"no rule allows it{near}", subjects=subjects)


def user_info(user: User, owned: OwnedStreams) -> UserInfo:
    """Return the public description of a user and what it owns, without anything that would allow to impersonate it."""
    return UserInfo(
        name=user.name,
        created_us=user.created_us,  # type: ignore[arg-type]
        credentials=tuple(
            CredentialInfo(
                credential_id=one.credential_id,
                kind=one.kind,
                created_us=one.created_us,  # type: ignore[arg-type]
                expires_us=one.expires_us,  # type: ignore[arg-type]
                public_key=one.public_key,
            )
            for one in user.credentials
        ),
        rules=user.rules,
        quotas=user.quotas,
        streams=owned.streams,
        partitions=owned.partitions,
        message_ids=owned.message_ids,
    )
