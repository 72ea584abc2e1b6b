"""The client's side of a proof: what somebody shows, and how it is written where it is kept.

Rules: a secret is in no `repr` and no error. A token says itself whose it is: `pst_USER_ID_SECRET`. A file of
credentials holds one line: a token, an nkey seed (SU…), or USER:PASSWORD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.access import nkeys, scram
from penstock.access.handshake import ClientHandshake
from penstock.access.nkeys import NkeyClient
from penstock.access.scram import ScramClient
from penstock.access.users import user_name_mistake
from penstock.base import limits

TOKEN_PREFIX = "pst_"

TOKEN_ITERATIONS = 1
"""A secret of 256 bits is not guessed."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What somebody shows: made by `password`, `token`, `nkey` or `parsed`."""

    name: str  # the user; of a token with its id behind a "/"; of an nkey nothing
    secret: str = field(repr=False)
    is_nkey: bool = False
    is_token: bool = False
    iterations: int = limits.PASSWORD_ITERATIONS  # that a broker asks for, and no other number
    _salted: dict[tuple[bytes, int], bytes] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def password(cls, user: str, password: str) -> Credentials:
        """A user and a password. ValueError: no user can have that name, or there is no password."""
        if (mistake := user_name_mistake(user)) is not None:
            raise ValueError(mistake)
        if not password:
            raise ValueError("the password is empty")
        return cls(user, password)

    @classmethod
    def token(cls, token: str) -> Credentials:
        """A token. ValueError: it is none."""
        user, _, rest = token.removeprefix(TOKEN_PREFIX).rpartition("_")
        user, _, credential_id = user.rpartition("_")
        if not token.startswith(TOKEN_PREFIX) or not rest or not credential_id or user_name_mistake(user) is not None:
            raise ValueError(f"that is no token: one begins with {TOKEN_PREFIX}, and holds a user, an id and a secret")
        return cls(f"{user}/{credential_id}", rest, is_token=True, iterations=TOKEN_ITERATIONS)

    @classmethod
    def nkey(cls, seed: str) -> Credentials:
        """An nkey seed (SU…)."""
        return cls("", seed, is_nkey=True)

    @classmethod
    def parsed(cls, text: str) -> Credentials:
        """A token, a seed, or USER:PASSWORD. ValueError: it is none of these."""
        line = text.strip("\r\n")
        if line.strip().startswith(TOKEN_PREFIX) and ":" not in line:
            return cls.token(line.strip())
        if line.strip().startswith("SU") and len(line.strip()) == 58:
            return cls.nkey(line.strip())
        user, colon, password = line.partition(":")
        if not colon or "\n" in line:
            raise ValueError("expected one line: a token (pst_…), an nkey seed (SU…), or USER:PASSWORD")
        if user_name_mistake(user) is not None:
            raise ValueError(
                "what stands before the first ':' cannot be a user's name; it may be a part of a secret, and is not "
                "repeated here. Expected one line: a token (pst_…), an nkey seed (SU…), or USER:PASSWORD"
            )
        return cls.password(user, password)

    def proof(self, nonce: Callable[[], str]) -> ClientHandshake:
        """One login with it. OperationalError: the seed is damaged."""
        is_nkey = self.is_nkey
        return ClientHandshake(
            _NkeyProof(self.secret, nonce()) if is_nkey else _ScramProof(self, nonce(), self._salted)
        )


class _ScramProof:
    mechanism = scram.MECHANISM

    def __init__(self, credentials: Credentials, nonce: str, known: dict[tuple[bytes, int], bytes]) -> None:
        self._client = ScramClient(credentials.name, credentials.secret, nonce, iterations=credentials.iterations)
        self._secret = credentials.secret
        self._known = known

    def first(self) -> bytes:
        return self._client.first()

    def prove(self, challenge: bytes) -> bytes:
        asked = self._client.asked(challenge)
        if asked not in self._known:
            self._known.clear()  # one is enough: the next connection is asked for the same
            self._known[asked] = scram.salted(self._secret, *asked)
        return self._client.prove(challenge, self._known[asked])

    def check(self, final: bytes) -> None:
        self._client.check(final)

    @property
    def session_key(self) -> bytes:
        return self._client.session_key


class _NkeyProof:
    mechanism = nkeys.MECHANISM
    session_key = b""

    def __init__(self, seed: str, nonce: str) -> None:
        self._client = NkeyClient(seed, nonce)

    def first(self) -> bytes:
        return self._client.first()

    def prove(self, challenge: bytes) -> bytes:
        return self._client.prove(challenge)

    def check(self, final: bytes) -> None:
        """A broker proves nothing where an nkey is shown: TLS says whom one speaks to."""


def shown_name(credentials: Credentials) -> str:
    """The user, token or nkey that logs in, without its secret. OperationalError: the seed is damaged."""
    if credentials.is_nkey:
        return f"the nkey {NkeyClient(credentials.secret, '').public_key}"
    user, _, credential_id = credentials.name.partition("/")
    return f"user {user!r} with the token {credential_id!r}" if credential_id else f"user {user!r}"


def token_text(user: str, credential_id: str, secret: str) -> str:
    """How a token is written."""
    return f"{TOKEN_PREFIX}{user}_{credential_id}_{secret}"
