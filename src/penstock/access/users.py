"""Users, their credentials, and their quotas on each broker.

Rules: only the verifier of a secret is stored: a reader of a cluster's metadata cannot log in with it. A user has at
most one password, and any number of tokens and nkeys up to CREDENTIALS_PER_USER_MAX: so these can be rotated while both
work. These structs are part of the metadata, in the order of their fields.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

import msgspec

from penstock.access.rules import Rule, is_admin
from penstock.base import limits

EVERYBODY = "*"
"""Not a user: its rules apply to every user."""

BROKER = "$broker"
"""Not a user: the name that brokers use when they prove to each other that they know the cluster's secret."""

PASSWORD_ID = "password"

ADMIN_CREDENTIALS_FILE = "admin.credentials"
"""In the data directory of the broker whose first start generated the password of the user admin."""

GIVE_CREDENTIALS = (
    "give credentials (credentials=, --credentials FILE before the command, or PENSTOCK_CREDENTIALS); where no admin "
    f"password was set, the broker's first start wrote a login into the file {ADMIN_CREDENTIALS_FILE} in its data "
    "directory"
)
"""End of the errors that ask for a login."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")


def user_name_mistake(name: str) -> str | None:
    """Return why this cannot be a user's name; None if it can."""
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
    """Return why the password is refused for a new login; None if it is accepted."""
    if len(password) < limits.PASSWORD_CHARS_MIN:
        return f"the password has {len(password)} characters; take {limits.PASSWORD_CHARS_MIN} at least"
    return None


class CredentialKind(StrEnum):
    """Kinds of credentials."""

    PASSWORD = "password"
    TOKEN = "token"
    NKEY = "nkey"


class Credential(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Verifier of one credential: for passwords and tokens as in RFC 5802; for an nkey its public key."""

    credential_id: str  # unique for the user: "password", or random
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
        """Fingerprint that tells the credential from another with its id; it reveals nothing."""
        return hashlib.sha256(self.stored_key + self.public_key.encode()).digest()[:8]

    def is_valid(self, now_us: int) -> bool:
        """True if the credential has not expired at that time."""
        return self.expires_us is None or now_us < self.expires_us


class Quotas(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Quotas of a user on each broker and in the cluster; None: no limit."""

    append_bytes_per_s: int | None = None
    fetch_bytes_per_s: int | None = None
    connections_max: int | None = None
    streams_max: int | None = None  # streams in the cluster that the user has created
    partitions_max: int | None = None  # of these streams together
    message_ids_max: int | None = None  # that the leaders may keep for these streams: `dedup_ids_max` of each partition


def quotas_mistake(quotas: Quotas) -> str | None:
    """Return why the quotas are out of range; None if they are valid."""
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
    """One user as agreed by the cluster; or EVERYBODY, which has only rules."""

    name: str
    created_us: int
    credentials: tuple[Credential, ...] = ()
    rules: tuple[Rule, ...] = ()  # sorted, each once
    quotas: Quotas = Quotas()
    made_index: int = 0  # index of the creating command: a user that was deleted and created again is another one

    @property
    def is_admin(self) -> bool:
        """True if the user may do everything."""
        return is_admin(self.rules)

    def credential(self, credential_id: str) -> Credential | None:
        """Return the user's credential of that id; None if there is none."""
        return next((one for one in self.credentials if one.credential_id == credential_id), None)


def credential_mistake(credential: Credential) -> str | None:
    """Return why the credential cannot or should not be used; None if it is valid."""
    if credential.expires_us is not None and not 0 <= credential.expires_us < 2**63:
        return f"a credential that expires at {credential.expires_us}"
    if not re.fullmatch(r"[A-Za-z0-9-]{1,32}", credential.credential_id):
        return f"the id {credential.credential_id!r} of a credential"
    if (credential.kind is CredentialKind.PASSWORD) != (credential.credential_id == PASSWORD_ID):
        return f"a {credential.kind} with the id {credential.credential_id!r}"
    if credential.kind is CredentialKind.NKEY:
        is_sound = re.fullmatch(r"U[A-Z2-7]{55}", credential.public_key) is not None
        return None if is_sound else "an nkey that is not the public key of a user (U…)"
    # The same for all users: another number or length would tell an existing user from an unknown one.
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
