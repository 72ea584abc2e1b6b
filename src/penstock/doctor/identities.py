"""Identities with which NATS permissions are tested: `penstock:penstock.creds`, `publisher:orders.creds:orders.>`,
`reader:shop.creds:orders`, none.

| role        | identity                                 | expected permissions                                       |
|-------------|------------------------------------------|------------------------------------------------------------|
| `penstock`  | the brokers                              | subscribe to every stream's subject, and answer publishers |
| `publisher` | an application                           | publish on its own subjects, subscribe to no stream        |
| `other`     | any other client                         | subscribe to no stream, publish into none                  |
| `reader`    | a client of JetStream's API              | read its own streams there, change none                    |
| `operator`  | a user that may list JetStream's streams | none: it is used, not checked                              |

If a broker gives an administrator the login to its embedded nats-server, that is tested as `penstock`.
A file contains NATS credentials (`.creds`), an nkey seed, or one line: `user:password`, or a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.base.errors import ConfigError
from penstock.base.subjects import stream_name_mistake, subject_mistake
from penstock.broker.security.nats_credentials import NatsCredentials, parse_nats_urls, read_credentials


class Role(StrEnum):
    """Role of an identity; see the module's table."""

    PENSTOCK = "penstock"
    PUBLISHER = "publisher"
    READER = "reader"
    OTHER = "other"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Identity:
    """A user that connects to NATS."""

    role: Role
    name: str  # for the report
    credentials: NatsCredentials
    subjects: tuple[str, ...] = ()  # of a publisher: its own
    streams: tuple[str, ...] = ()  # of a reader: its own


NOBODY = Identity(Role.OTHER, "a client without credentials", NatsCredentials())


def parse_identities(texts: Iterable[str]) -> list[Identity]:
    """Parse `ROLE:FILE[:SUBJECT,…]`; raise ConfigError with every mistake."""
    found: list[Identity] = []
    mistakes: list[str] = []
    for text in texts:
        try:
            found.append(_identity(text))
        except ValueError as error:
            mistakes.append(f"--as {text}: {error}")
    if mistakes:
        raise ConfigError(mistakes)
    return found


def with_login_of_broker(identities: Sequence[Identity], nats_urls: Sequence[str]) -> list[Identity]:
    """Add the login that a broker gives administrators on its machine, unless the brokers' user was given.

    `nats_urls`: from the broker; the URL of an embedded nats-server has a login.
    """
    logins = [one for one in parse_nats_urls(",".join(nats_urls)) if one.user is not None] if nats_urls else []
    if not logins or any(one.role is Role.PENSTOCK for one in identities):
        return list(identities)
    credentials = NatsCredentials(user=logins[0].user, password=logins[0].password)
    return [Identity(Role.PENSTOCK, "the brokers' own user", credentials), *identities]


def _identity(text: str) -> Identity:
    role_name, _, rest = text.partition(":")
    file_name, _, subject_list = rest.partition(":")
    if role_name not in set(Role):
        raise ValueError(f"{role_name!r} is not one of {', '.join(Role)}")
    if not file_name:
        raise ValueError("name a file with credentials: ROLE:FILE")
    role, file = Role(role_name), Path(file_name)
    subjects = tuple(filter(None, subject_list.split(",")))
    if role is Role.READER:
        for name in subjects:
            if (mistake := stream_name_mistake(name)) is not None:
                raise ValueError(mistake)
        return Identity(role, f"{role} {file.name}", read_credentials(file), streams=subjects)
    if subjects and role is not Role.PUBLISHER:
        raise ValueError("only a publisher has subjects of its own, and a reader streams")
    for subject in subjects:
        if (mistake := subject_mistake(subject, wildcards=True)) is not None:
            raise ValueError(mistake)
    return Identity(role, f"{role} {file.name}", read_credentials(file), subjects)
