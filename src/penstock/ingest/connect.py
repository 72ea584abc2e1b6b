"""INFO, CONNECT and -ERR of the NATS protocol.

Rules: input from nats-server is bounded and validated before it is used; unknown fields and null fields are ignored, as
the protocol asks. Parsing takes time linear in the length: a -ERR repeats text that other clients have chosen. Secrets
are in the CONNECT line only: never in `repr`, never in an error.

| authentication             | in CONNECT                              | needs the nonce of INFO |
|----------------------------|-----------------------------------------|-------------------------|
| none                       |                                         |                         |
| user and password          | `user`, `pass`                          |                         |
| token                      | `auth_token`                            |                         |
| nkey                       | `nkey` (public key), `sig`              | yes                     |
| JWT (credentials file)     | `jwt`, `sig`                            | yes                     |
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.subjects import is_within


class SubjectPermission(msgspec.Struct, frozen=True):
    """Subjects that a user may use; `allow` None: all that `deny` does not name."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None

    def allows(self, subject: str) -> bool:
        """True if a message on the plain subject is allowed."""
        is_allowed = not self.allow or any(is_within(subject, pattern) for pattern in self.allow)
        return is_allowed and not any(is_within(subject, pattern) for pattern in self.deny or ())


class ServerInfo(msgspec.Struct, frozen=True):
    """The fields of INFO that are used here. Sizes in bytes."""

    server_name: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = 1024 * 1024
    tls_required: bool = False
    tls_available: bool = False
    auth_required: bool = False
    tls_verify: bool = False  # the server requires a client certificate
    nonce: str = ""
    ldm: bool = False
    jetstream: bool = False  # the server has JetStream
    connect_urls: tuple[str, ...] = ()  # host:port of the servers of its cluster
    # To a leaf only:
    leafnode_urls: tuple[str, ...] = ()  # host:port of the leaf ports of its cluster
    export: SubjectPermission | None = None  # what the leaf may publish; None: everything


def parse_info(line: bytes) -> ServerInfo:
    """Parse the INFO line (without CR LF); raise OperationalError if it is invalid."""
    try:
        told = msgspec.json.decode(line[len(b"INFO") :].strip(), type=dict[str, object])
        for name in ("connect_urls", "leafnode_urls"):  # from other servers: invalid entries are skipped
            urls = told.get(name)
            told[name] = [url for url in (urls if isinstance(urls, list) else []) if isinstance(url, str)][
                : limits.NATS_ANNOUNCED_MAX
            ]
        info = msgspec.convert({name: value for name, value in told.items() if value is not None}, ServerInfo)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise OperationalError(f"the INFO line of nats-server cannot be read ({error})") from None
    if info.max_payload < 0:
        raise OperationalError(f"the INFO line of nats-server gives max_payload {info.max_payload}")
    return info


@dataclass(frozen=True, slots=True)
class Authentication:
    """Login of one connection. `sign` returns the raw Ed25519 signature of the nonce."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey: str | None = None
    jwt: str | None = field(default=None, repr=False)
    sign: Callable[[bytes], bytes] | None = field(default=None, repr=False)


ANONYMOUS = Authentication()

LEAF_ACCOUNT = "penstock"
"""Name that a leaf gives to its own account."""


def connect_line(info: ServerInfo, authentication: Authentication, *, name: str, version: str, tls: bool) -> bytes:
    """Return the CONNECT line, with CR LF."""
    options: dict[str, object] = {
        "verbose": False,
        "pedantic": False,
        "tls_required": tls,
        "name": name,
        "lang": "python",
        "version": version,
        "protocol": 1,  # requests INFO lines during the connection
        "echo": True,  # a message published by this process is stored like any other
        "headers": info.headers,
        "no_responders": info.headers,
    }
    return _connect(info, authentication, options)


def leaf_connect_line(info: ServerInfo, authentication: Authentication, *, name: str, tls: bool) -> bytes:
    """Return the CONNECT line of a leaf, with CR LF. nats-server closes an older leaf of the same name.

    It takes a line with `lang` for a client's. `remote_account` must be there for it to compare names. `version` is
    compared with the setting `min_version` only.
    """
    options: dict[str, object] = {
        "verbose": False,
        "tls_required": tls,
        "server_id": name,
        "name": name,
        "remote_account": LEAF_ACCOUNT,
        "version": info.version,
        "protocol": 1,
        "headers": info.headers,
    }
    return _connect(info, authentication, options)


def _connect(info: ServerInfo, authentication: Authentication, options: dict[str, object]) -> bytes:
    secrets = {
        "user": authentication.user,
        "pass": authentication.password,
        "auth_token": authentication.token,
        "nkey": authentication.nkey,
        "jwt": authentication.jwt,
    }
    options.update({key: value for key, value in secrets.items() if value is not None})
    if authentication.sign is not None and info.nonce:
        signature = authentication.sign(info.nonce.encode())
        options["sig"] = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return b"CONNECT " + msgspec.json.encode(options) + b"\r\n"


class ErrorKind(StrEnum):
    """Cause of a -ERR."""

    AUTHORIZATION = "authorization"  # refused, expired or revoked credentials
    PERMISSION_SUBSCRIBE = "permission_subscribe"
    PERMISSION_PUBLISH = "permission_publish"
    SLOW_CONSUMER = "slow_consumer"
    STALE_CONNECTION = "stale_connection"
    MAX_PAYLOAD = "max_payload"
    MAX_CONNECTIONS = "max_connections"
    MAX_SUBSCRIPTIONS = "max_subscriptions"
    MAX_CONTROL_LINE = "max_control_line"
    INVALID_SUBJECT = "invalid_subject"
    TLS_REQUIRED = "tls_required"
    PROTOCOL = "protocol"
    SERVER_STOPPING = "server_stopping"
    DUPLICATE_LEAF = "duplicate_leaf"  # another leaf of the same name has connected
    OTHER = "other"


class ErrorLine(msgspec.Struct, frozen=True):
    """One -ERR: kind, text, whether nats-server closes the connection after it, the subject it names."""

    kind: ErrorKind
    text: str
    closes: bool
    subject: str | None = None


# Beginnings of nats-server's texts, in lower case; the first match decides. (kind, server closes)
_ERROR_TABLE: tuple[tuple[str, ErrorKind, bool], ...] = (
    ("permissions violation for subscription", ErrorKind.PERMISSION_SUBSCRIBE, False),
    ("permissions violation for publish", ErrorKind.PERMISSION_PUBLISH, False),
    ("permissions violation", ErrorKind.PERMISSION_PUBLISH, False),
    ("authorization violation", ErrorKind.AUTHORIZATION, True),
    ("authorization timeout", ErrorKind.AUTHORIZATION, True),
    ("authentication timeout", ErrorKind.AUTHORIZATION, True),
    ("authentication expired", ErrorKind.AUTHORIZATION, True),
    ("authentication revoked", ErrorKind.AUTHORIZATION, True),
    ("user authentication", ErrorKind.AUTHORIZATION, True),
    ("account authentication", ErrorKind.AUTHORIZATION, True),
    ("credentials", ErrorKind.AUTHORIZATION, True),
    ("slow consumer", ErrorKind.SLOW_CONSUMER, True),
    ("stale connection", ErrorKind.STALE_CONNECTION, True),
    ("maximum payload", ErrorKind.MAX_PAYLOAD, True),
    ("maximum connections", ErrorKind.MAX_CONNECTIONS, True),
    ("maximum account", ErrorKind.MAX_CONNECTIONS, True),
    ("maximum user", ErrorKind.MAX_CONNECTIONS, True),
    ("connection throttling", ErrorKind.MAX_CONNECTIONS, True),
    ("maximum subscriptions", ErrorKind.MAX_SUBSCRIPTIONS, False),
    ("maximum control line", ErrorKind.MAX_CONTROL_LINE, True),
    ("invalid subject", ErrorKind.INVALID_SUBJECT, False),
    ("invalid publish subject", ErrorKind.INVALID_SUBJECT, False),
    ("secure connection", ErrorKind.TLS_REQUIRED, True),
    ("unknown protocol", ErrorKind.PROTOCOL, True),
    ("parser error", ErrorKind.PROTOCOL, True),
    ("invalid client protocol", ErrorKind.PROTOCOL, True),
    ("attempted to connect", ErrorKind.PROTOCOL, True),
    ("server shutdown", ErrorKind.SERVER_STOPPING, True),
    ("duplicate remote leafnode", ErrorKind.DUPLICATE_LEAF, True),
)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"')  # possessive, and matched at the first quote only: no backtracking
_ESCAPE = re.compile(r"\\(.)")


def parse_error(line: bytes) -> ErrorLine:
    """Parse a -ERR line (without CR LF). Never fails: an unknown error is `OTHER` and does not close.

    The text is cut at NATS_ERROR_BYTES_MAX bytes.
    """
    said = line[len(b"-ERR") :][: limits.NATS_ERROR_BYTES_MAX]
    text = said.decode("utf-8", "replace").strip().strip("'")
    folded = text.lower()
    kind, closes = next(
        ((kind, closes) for beginning, kind, closes in _ERROR_TABLE if folded.startswith(beginning)),
        (ErrorKind.OTHER, False),
    )
    quoted = _QUOTED.match(text, max(text.find('"'), 0)) if kind in _NAMING_SUBJECT else None
    subject = None if quoted is None else _ESCAPE.sub(r"\1", quoted.group(1))
    return ErrorLine(kind, text, closes, subject)


_NAMING_SUBJECT = frozenset({ErrorKind.PERMISSION_SUBSCRIBE, ErrorKind.PERMISSION_PUBLISH})
