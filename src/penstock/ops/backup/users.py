"""Users in a backup: their verifiers, rules and quotas; and their restoration.

Rules: the file holds what a broker stores, so passwords, tokens and nkeys still work after a restore; it holds no
secrets. Each run writes a new file and deletes the old one, so that revoked credentials are not kept. A restore creates
only users that do not exist; existing users are not changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule
from penstock.access.rules import EVERYTHING, is_admin
from penstock.access.users import EVERYBODY
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.messages import UserExport
from penstock.ops.backup.files import AccessBackup, Manifest, read_whole, write_manifest, write_whole

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client


class _Credential(msgspec.Struct, frozen=True, omit_defaults=True):
    """`Credential` as a JSON object with field names."""

    credential_id: str
    kind: CredentialKind
    created_us: int
    expires_us: int | None = None
    salt: bytes = b""
    iterations: int = 0
    stored_key: bytes = b""
    server_key: bytes = b""
    public_key: str = ""


class _Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """`Rule` as a JSON object with field names."""

    operation: Operation
    stream: str = ""
    subject: str = ""
    group: str = EVERYTHING


class _Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """`Quotas` as a JSON object with field names."""

    append_bytes_per_s: int | None = None
    fetch_bytes_per_s: int | None = None
    connections_max: int | None = None
    streams_max: int | None = None
    partitions_max: int | None = None
    message_ids_max: int | None = None


class _User(msgspec.Struct, frozen=True, omit_defaults=True):
    """`UserExport` as a JSON object with field names."""

    name: str
    created_us: int
    credentials: tuple[_Credential, ...] = ()
    rules: tuple[_Rule, ...] = ()
    quotas: _Quotas = _Quotas()


class _File(msgspec.Struct, frozen=True):
    """Content of the users' file, sorted by user name."""

    users: tuple[_User, ...]


def write_users(folder: Path, manifest: Manifest, users: Sequence[UserExport], backed_up: str) -> None:
    """Replace the users in the backup, durably."""
    before, manifest.access = manifest.access, None
    if users:
        data = msgspec.json.format(msgspec.json.encode(_File(tuple(map(_kept, users)))), indent=1)
        sha = hashlib.sha256(data).hexdigest()
        path = Path("users") / f"{sha[:16]}.json"
        write_whole(folder, path, data)
        manifest.access = AccessBackup(path.as_posix(), len(users), len(data), sha, backed_up)
    write_manifest(folder, manifest)
    kept = None if manifest.access is None else folder / manifest.access.path
    for file in (folder / "users").glob("*.json") if before is not None or kept is not None else ():
        if file != kept:
            file.unlink()


def read_users(folder: Path, access: AccessBackup) -> list[UserExport]:
    """Return the users. Raise CorruptionError if the file differs from its manifest entry. Raise OSError."""
    return [_exported(one) for one in msgspec.json.decode(read_whole(folder, access), type=_File).users]


class RestoredUsers(NamedTuple):
    """Names of users: `made`; `left`, which existed before; and `administrators`, those of `made` with that rule."""

    made: list[str]
    left: list[str]
    administrators: list[str]


def check_target(client: Client, timeout_s: float) -> None:
    """Raise OperationalError if authentication is off in the target cluster. Errors of the request pass through."""
    if not client.users.all(timeout=timeout_s).is_guarded:
        text = "authentication is off in that cluster, and its first user has to be an administrator: make one"
        raise OperationalError(f"{text} (`penstock user add NAME --admin`), then restore users")


def administrators(client: Client, users: Iterable[UserExport], timeout_s: float) -> list[str]:
    """Return the names of the users that a restore would create with the admin rule."""
    there = {one.name for one in client.users.all(timeout=timeout_s).users}
    return [one.name for one in users if one.name not in there and is_admin(one.rules)]


def restore_users(client: Client, users: Iterable[UserExport], timeout_s: float) -> RestoredUsers:
    """Create the users that do not exist. Raise RemoteError if one of them cannot be created."""
    from penstock.client.users import NewCredential

    there = {one.name for one in client.users.all(timeout=timeout_s).users}
    done = RestoredUsers([], [], [])
    for user in users:
        if user.name in there:
            done.left.append(user.name)
            continue
        if user.name == EVERYBODY:
            client.users.change_rules(EVERYBODY, add=user.rules, timeout=timeout_s)
        else:
            credentials = [NewCredential(one) for one in user.credentials]
            try:
                client.users.create(user.name, *credentials, rules=user.rules, quotas=user.quotas, timeout=timeout_s)
            except RemoteError as error:
                if error.code == ErrorCode.USER_EXISTS:  # another client created it meanwhile
                    done.left.append(user.name)
                    continue
                raise RemoteError(error.code, f"user {user.name!r}: {error.message}", **error.details) from None
        done.made.append(user.name)
        if is_admin(user.rules):
            done.administrators.append(user.name)
    return done


def _kept(user: UserExport) -> _User:
    return _User(
        user.name,
        user.created_us,
        tuple(_Credential(**msgspec.structs.asdict(one)) for one in user.credentials),
        tuple(_Rule(**msgspec.structs.asdict(one)) for one in user.rules),
        _Quotas(**msgspec.structs.asdict(user.quotas)),
    )


def _exported(user: _User) -> UserExport:
    return UserExport(
        name=user.name,
        created_us=user.created_us,  # type: ignore[arg-type]
        credentials=tuple(Credential(**msgspec.structs.asdict(one)) for one in user.credentials),
        rules=tuple(Rule(**msgspec.structs.asdict(one)) for one in user.rules),
        quotas=Quotas(**msgspec.structs.asdict(user.quotas)),
    )
