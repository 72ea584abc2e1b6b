"""Users, what proves that somebody is one, and what they may use of a broker.

Rules: of a secret only what checks it is kept: who reads the metadata of a cluster cannot speak for a user with what is
there. A user has one password at most, and any number of tokens and nkeys up to CREDENTIALS_PER_USER_MAX: so those can
be changed while both work. What is here is part of the metadata, in the order of its fields.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

import msgspec

from penstock.access.rules import Rule, is_admin
from penstock.base import limits

EVERYBODY = "*"
"""Not a user: what its rules allow, every user may do."""

BROKER = "$broker"
"""Not a user: how brokers call themselves where they prove to each other that they know the cluster's secret."""

PASSWORD_ID = "password"

ADMIN_CREDENTIALS_FILE = "admin.credentials"
"""In the data directory of the broker whose first start drew the password of the user admin."""

GIVE_CREDENTIALS = (
    "give credentials (credentials=, --credentials FILE before the command, or PENSTOCK_CREDENTIALS); where no admin "
    f"password was set, the broker's first start wrote a login into the file {ADMIN_CREDENTIALS_FILE} in its data "
    "directory"
)
"""How an error ends that asks for a login."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")


def user_name_mistake(name: str) -> str | None:
    """Why that cannot be the name of a user; None if it can."""
    if not name:
        return "a user needs a name"
    if len(name) > limits.USER_NAME_CHARS_MAX:
        return f"the name is {len(name)} characters long; the limit is {limits.USER_NAME_CHARS_MAX}"
    if not _NAME.fullmatch(name):
        return (
            f"the name {name!r} may hold only letters, digits, '-', '_', '.' and '@', and begins with a letter or digit"
        )
    return None


def password_mistake(password: str) -> str | None:
    """Why that password is not taken for a new login; None if it is."""
    if len(password) < limits.PASSWORD_CHARS_MIN:
        return f"the password has {len(password)} characters; take {limits.PASSWORD_CHARS_MIN} at least"
    return None


class CredentialKind(StrEnum):
    """How somebody proves who they are."""

    PASSWORD = "password"
    TOKEN = "token"
    NKEY = "nkey"


class Credential(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What checks one proof. Of passwords and tokens as of RFC 5802; of an nkey its public half."""

    credential_id: str  # among the user's: "password", or drawn by chance
    kind: CredentialKind
    created_us: int
    expires_us: int | None = None  # None: never
    salt: bytes = b""
    iterations: int = 0
    stored_key: bytes = b""
    server_key: bytes = b""
    public_key: str = ""

    @property
    def mark(self) -> bytes:
        """By which it is told from another one that takes its place; tells nothing."""
        return hashlib.sha256(self.stored_key + self.public_key.encode()).digest()[:8]

    def is_valid(self, now_us: int) -> bool:
        """Whether it counts at that time."""
        return self.expires_us is None or now_us < self.expires_us


class Quotas(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a user may use of each broker, and of the cluster; None: as much as there is."""

    append_bytes_per_s: int | None = None
    fetch_bytes_per_s: int | None = None
    connections_max: int | None = None
    streams_max: int | None = None  # of the cluster, that it may have made
    partitions_max: int | None = None  # that these streams may have together
    message_ids_max: int | None = None  # that their leaders may keep: `dedup_ids_max` of each partition


def quotas_mistake(quotas: Quotas) -> str | None:
    """Why nobody could live with them; None if one can."""
    for what, value, least, most in (
        ("an append rate", quotas.append_bytes_per_s, limits.USER_RATE_MIN, limits.USER_RATE_MAX),
        ("a fetch rate", quotas.fetch_bytes_per_s, limits.USER_RATE_MIN, limits.USER_RATE_MAX),
        ("a number of connections", quotas.connections_max, 1, limits.CONNECTIONS_MAX),
        ("a number of streams", quotas.streams_max, 1, limits.STREAMS_MAX),
        ("a number of partitions", quotas.partitions_max, 1, limits.PARTITIONS_MAX),
        ("a number of message ids", quotas.message_ids_max, 1, limits.USER_MESSAGE_IDS_MAX),
    ):
        if value is not None and not least <= value <= most:
            return f"{what} of {value} is not between {least} and {most}"
    return None


class User(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One user as the cluster agreed on it; or EVERYBODY, who has rules and nothing else."""

    name: str
    created_us: int
    credentials: tuple[Credential, ...] = ()
    rules: tuple[Rule, ...] = ()  # sorted, each once
    quotas: Quotas = Quotas()
    made_index: int = 0  # of the command that made it: one that was deleted and made again is another one

    @property
    def is_admin(self) -> bool:
        """Whether everything is allowed to it."""
        return is_admin(self.rules)

    def credential(self, credential_id: str) -> Credential | None:
        """Its credential of that id."""
        return next((one for one in self.credentials if one.credential_id == credential_id), None)


def credential_mistake(credential: Credential) -> str | None:
    """Why it could not check anything, or should not; None if it can."""
    if credential.expires_us is not None and not 0 <= credential.expires_us < 2**63:
        return f"a credential that expires at {credential.expires_us}"
    if not re.fullmatch(r"[A-Za-z0-9-]{1,32}", credential.credential_id):
        return f"the id {credential.credential_id!r} of a credential"
    if (credential.kind is CredentialKind.PASSWORD) != (credential.credential_id == PASSWORD_ID):
        return f"a {credential.kind} with the id {credential.credential_id!r}"
    if credential.kind is CredentialKind.NKEY:
        is_sound = re.fullmatch(r"U[A-Z2-7]{55}", credential.public_key) is not None
        return None if is_sound else "an nkey that is not the public key of a user (U…)"
    # Alike for all, or who has another number, or another length, would be told from somebody who is not there.
    wanted = limits.PASSWORD_ITERATIONS if credential.kind is CredentialKind.PASSWORD else 1
    if credential.iterations != wanted:
        return f"{credential.iterations} iterations; of a {credential.kind} {wanted} are taken"
    if (
        len(credential.salt) != limits.SALT_BYTES
        or len(credential.stored_key) != 32
        or len(credential.server_key) != 32
    ):
        return "a salt or a key of the wrong length"
    return None
