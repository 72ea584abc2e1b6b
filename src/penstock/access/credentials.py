"""The client's credentials: their proofs, and the text forms in which they are stored.

Rules: no `repr` and no error holds a secret. A token names its user: `pst_USER_ID_SECRET`. A credentials file holds one
line: a token, an nkey seed (SU…), or USER:PASSWORD.
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
"""A secret of 256 bits cannot be guessed."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's credentials; create them with `password`, `token`, `nkey` or `parsed`."""

    name: str  # the user; for a token followed by "/" and its id; empty for an nkey
    secret: str = field(repr=False)
    is_nkey: bool = False
    is_token: bool = False
    iterations: int = limits.PASSWORD_ITERATIONS  # the only number accepted from a broker
    _salted: dict[tuple[bytes, int], bytes] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def password(cls, user: str, password: str) -> Credentials:
        """Return the credentials of a user with a password. ValueError: invalid name or empty password."""
        if (mistake := user_name_mistake(user)) is not None:
            raise ValueError(mistake)
        if not password:
            raise ValueError("the password is empty")
        return cls(user, password)

    @classmethod
    def token(cls, token: str) -> Credentials:
        """Return the credentials in a token. ValueError: it is not a token."""
        user, _, rest = token.removeprefix(TOKEN_PREFIX).rpartition("_")
        user, _, credential_id = user.rpartition("_")
        if not token.startswith(TOKEN_PREFIX) or not rest or not credential_id or user_name_mistake(user) is not None:
            raise ValueError(f"that is no token: one begins with {TOKEN_PREFIX}, and holds a user, an id and a secret")
        return cls(f"{user}/{credential_id}", rest, is_token=True, iterations=TOKEN_ITERATIONS)

    @classmethod
    def nkey(cls, seed: str) -> Credentials:
        """Return the credentials of an nkey seed (SU…)."""
        return cls("", seed, is_nkey=True)

    @classmethod
    def parsed(cls, text: str) -> Credentials:
        """Parse a token, a seed, or USER:PASSWORD. ValueError: it is none of these."""
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
                "the text before the first ':' cannot be a user's name; it may be a part of a secret, and is not "
                "repeated here. Expected one line: a token (pst_…), an nkey seed (SU…), or USER:PASSWORD"
            )
        return cls.password(user, password)

    def proof(self, nonce: Callable[[], str]) -> ClientHandshake:
        """Return the handshake for one login. OperationalError: the seed is invalid."""
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
            self._known.clear()  # one is enough: the next connection gets the same salt
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
        """Accept any answer: with an nkey the broker proves nothing; TLS authenticates it."""


def shown_name(credentials: Credentials) -> str:
    """Return the user, token or nkey that logs in, without its secret. OperationalError: the seed is invalid."""
    if credentials.is_nkey:
        return f"the nkey {NkeyClient(credentials.secret, '').public_key}"
    user, _, credential_id = credentials.name.partition("/")
    return f"user {user!r} with the token {credential_id!r}" if credential_id else f"user {user!r}"


def token_text(user: str, credential_id: str, secret: str) -> str:
    """Return the text form of a token."""
    return f"{TOKEN_PREFIX}{user}_{credential_id}_{secret}"
