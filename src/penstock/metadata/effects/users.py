"""User commands: create, alter, delete, change rules.

Rules: the first user turns authentication on, so it is an administrator, and from then on there is always an
administrator with a credential that does not expire: no user can lock everybody out, nor can two concurrent changes.
Limits are checked when a command is proposed (`check_…`), not when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from penstock.access import Credential, CredentialKind, Quotas, Rule, User
from penstock.access.nkeys import public_key_mistake
from penstock.access.rules import rule_mistake
from penstock.access.users import EVERYBODY, credential_mistake, quotas_mistake, user_name_mistake
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.commands import AlterUser, ChangeRules, CreateUser, DeleteUser, ExportUsers
from penstock.metadata.image import ClusterImage, CommandOutcome

Changed = tuple[ClusterImage, CommandOutcome]


def check_create_user(image: ClusterImage, user: User) -> None:
    """Raise RemoteError if the user cannot be created."""
    if (mistake := user_name_mistake(user.name)) is not None:
        raise RemoteError(ErrorCode.BAD_REQUEST, mistake)
    if not user.credentials:
        raise RemoteError(ErrorCode.BAD_REQUEST, f"user {user.name!r} has no credentials")
    _check_credentials(user.credentials)
    _check_rules(user.rules)
    _check_quotas(user.quotas)
    if len(image.users) >= limits.USERS_MAX:
        raise RemoteError(ErrorCode.TOO_LARGE, f"there are {limits.USERS_MAX} users already")


def check_alter_user(image: ClusterImage, command: AlterUser) -> None:
    """Raise RemoteError if the user cannot be altered so."""
    _check_credentials(command.add)
    _check_quotas(command.quotas)
    altered = _altered(image.user(command.name), command)
    if len(altered.credentials) > limits.CREDENTIALS_PER_USER_MAX:
        text = f"a user has at most {limits.CREDENTIALS_PER_USER_MAX} credentials; take some away first"
        raise RemoteError(ErrorCode.TOO_LARGE, text)


def check_change_rules(image: ClusterImage, command: ChangeRules) -> None:
    """Raise RemoteError if the rules cannot be changed so."""
    _check_rules(command.add)
    if command.name == EVERYBODY and any(rule_mistake(rule) is None and not _is_bounded(rule) for rule in command.add):
        raise RemoteError(
            ErrorCode.BAD_REQUEST, "`*` (every user) cannot be an administrator, nor monitor the cluster: name a user"
        )
    there = image.users.get(command.name)
    if there is not None and len({*there.rules, *command.add} - {*command.drop}) > limits.RULES_PER_USER_MAX:
        text = f"a user has at most {limits.RULES_PER_USER_MAX} rules; a pattern may do for several"
        raise RemoteError(ErrorCode.TOO_LARGE, text)


def check_way_in(image: ClusterImage, command: CreateUser | AlterUser | DeleteUser | ChangeRules) -> None:
    """Raise RemoteError as applying would: change_refused if no administrator with a lasting credential remains."""
    _CHANGES[type(command)](image, image.index + 1, command)


def _way_left(image: ClusterImage) -> ClusterImage:
    """Return the image after a change of administrators. Raise RemoteError (change_refused) as above."""
    rulers = [image.users[name] for name in image.administrators()]
    if not any(one.expires_us is None for user in rulers for one in user.credentials):
        text = "all administrators' credentials would expire: one administrator needs one without an expiry"
        raise RemoteError(ErrorCode.CHANGE_REFUSED, text)
    return image


def _is_bounded(rule: Rule) -> bool:
    return bool(rule.stream or rule.subject)


def _check_credentials(credentials: tuple[Credential, ...]) -> None:
    for credential in credentials:
        mistake = credential_mistake(credential)
        if mistake is None and credential.kind is CredentialKind.NKEY:
            mistake = public_key_mistake(credential.public_key)
        if mistake is not None:
            raise RemoteError(ErrorCode.BAD_REQUEST, mistake)


def _check_quotas(quotas: Quotas | None) -> None:
    if quotas is not None and (mistake := quotas_mistake(quotas)) is not None:
        raise RemoteError(ErrorCode.BAD_REQUEST, mistake)


def _check_rules(rules: tuple[Rule, ...]) -> None:
    for rule in rules:
        if (mistake := rule_mistake(rule)) is not None:
            raise RemoteError(ErrorCode.BAD_REQUEST, mistake)


def create_user(image: ClusterImage, index: int, command: CreateUser) -> Changed:
    """Apply `CreateUser`. Raise RemoteError (user_exists, change_refused)."""
    user = msgspec.structs.replace(
        command.user, created_us=command.created_us, made_index=index, rules=tuple(sorted({*command.user.rules}))
    )
    _check_own(image, user.name, user.credentials)
    existing = image.users.get(user.name)
    if existing is not None and _proofs(existing) == _proofs(user) and existing.rules == user.rules:
        return image, CommandOutcome()  # a retry
    if existing is not None:
        raise RemoteError(ErrorCode.USER_EXISTS, f"there is a user {user.name!r} already", user=user.name)
    if command.is_first and image.users:
        raise RemoteError(ErrorCode.USER_EXISTS, "there are users already")
    if not image.users and not user.is_admin:
        text = "the first user must be an administrator: from then on all clients have to log in"
        raise RemoteError(ErrorCode.CHANGE_REFUSED, text)
    if not image.users:
        return _way_left(_with(replace(image, decoy_key=command.chance), user)), CommandOutcome(changed=True)
    return _with(image, user), CommandOutcome(changed=True)


def alter_user(image: ClusterImage, index: int, command: AlterUser) -> Changed:
    """Apply `AlterUser`. Raise RemoteError (user_not_found, change_refused)."""
    user = image.user(command.name)
    if command.name == EVERYBODY:
        text = "`*` (every user) has no credentials and no quotas: name a user"
        raise RemoteError(ErrorCode.CHANGE_REFUSED, text)
    altered = _altered(user, command)
    _check_own(image, command.name, altered.credentials)
    if altered == user:
        return image, CommandOutcome()
    if not altered.credentials and user.credentials:
        text = f"user {command.name!r} would have no credentials left; delete the user instead"
        raise RemoteError(ErrorCode.CHANGE_REFUSED, text)
    changed = _with(image, altered)
    return _way_left(changed) if user.is_admin else changed, CommandOutcome(changed=True)


def _proofs(user: User) -> list[tuple[str, bytes]]:
    return [(one.credential_id, one.mark) for one in user.credentials]


def _check_own(image: ClusterImage, name: str, credentials: tuple[Credential, ...]) -> None:
    """Raise RemoteError (change_refused) if a credential is duplicated, or belongs to another user."""
    ids = [one.credential_id for one in credentials]
    if len(set(ids)) < len(ids):
        raise RemoteError(ErrorCode.CHANGE_REFUSED, "two credentials have the same id; each needs its own")
    keys = [one.public_key for one in credentials if one.public_key]
    others = (one for user in image.users.values() if user.name != name for one in user.credentials)
    if len(set(keys)) < len(keys) or (keys and any(one.public_key in keys for one in others)):
        raise RemoteError(ErrorCode.CHANGE_REFUSED, "this nkey is already in use; each credential needs its own")


def _altered(user: User, command: AlterUser) -> User:
    gone = {*command.drop, *(one.credential_id for one in command.add)}
    kept = tuple(one for one in user.credentials if one.credential_id not in gone)
    quotas = user.quotas if command.quotas is None else command.quotas
    return msgspec.structs.replace(user, credentials=(*kept, *command.add), quotas=quotas)


def delete_user(image: ClusterImage, index: int, command: DeleteUser) -> Changed:
    """Apply `DeleteUser`. Raise RemoteError (user_not_found, change_refused)."""
    user = image.user(command.name)
    _check_ruled(image, command.name)
    changed = image.without_user(command.name)
    return _way_left(changed) if user.is_admin else changed, CommandOutcome(changed=True)


def change_rules(image: ClusterImage, index: int, command: ChangeRules) -> Changed:
    """Apply `ChangeRules`. Raise RemoteError (user_not_found, change_refused)."""
    if command.name == EVERYBODY and image.users and EVERYBODY not in image.users:
        user = User(EVERYBODY, command.changed_us, made_index=index)
    else:
        user = image.user(command.name)
    rules = tuple(sorted({*user.rules, *command.add} - {*command.drop}))
    if rules == user.rules:
        return image, CommandOutcome()
    changed = msgspec.structs.replace(user, rules=rules)
    if user.is_admin and not changed.is_admin:
        _check_ruled(image, command.name)
        return _way_left(_with(image, changed)), CommandOutcome(changed=True)
    return _with(image, changed), CommandOutcome(changed=True)


def export_users(image: ClusterImage, index: int, command: ExportUsers) -> Changed:
    """Apply `ExportUsers`. It changes nothing, but counts as a change, because it is audited."""
    return image, CommandOutcome(changed=True)


def _check_ruled(image: ClusterImage, without: str) -> None:
    if image.administrators() == [without]:
        text = f"{without!r} is the last administrator: make another user an administrator first"
        raise RemoteError(ErrorCode.CHANGE_REFUSED, text)


def _with(image: ClusterImage, user: User) -> ClusterImage:
    return replace(image, users=image.users.with_item(user.name, user))


_CHANGES: dict[type, Callable[[ClusterImage, int, Any], Changed]] = {
    CreateUser: create_user,
    AlterUser: alter_user,
    DeleteUser: delete_user,
    ChangeRules: change_rules,
}
