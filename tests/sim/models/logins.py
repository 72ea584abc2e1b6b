"""The client side of logins, and the first administrator.

Rules: Secrets are derived from names and numbers, so that a seed is deterministic; the exchange is the real one. A
client whose login fails tries its earlier secrets: it may not know whether a rotation took effect.
"""

from __future__ import annotations

from hashlib import sha256

from penstock.access import Credential, CredentialKind, Operation, Rule, User
from penstock.access.credentials import TOKEN_ITERATIONS, Credentials
from penstock.access.handshake import ClientHandshake
from penstock.access.scram import verifier_of
from penstock.base import limits

ADMIN = "admin"
APP = "app"
"""A user whose rules never change: it has all rights but the admin rule."""

_ID = "main"
_SECRETS_KEPT = 4


class Login:
    """The credentials of one user."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._made = 0
        self._secrets: list[str] = []  # newest first
        self.tried = 0  # refused logins since the last new secret; selects the secret
        self._nonces = 0
        self._next: Credential | None = None

    def renewed(self) -> Credential:
        """Return the credential of the next secret: the same one until `taken` is called."""
        if self._next is None:
            self._made += 1
            secret = f"{self.name}, {self._made}"
            self._secrets.insert(0, secret)
            del self._secrets[_SECRETS_KEPT:]
            self.tried = 0
            salt = sha256(secret.encode()).digest()[: limits.SALT_BYTES]
            keys = verifier_of(secret, salt, 1)
            self._next = Credential(_ID, CredentialKind.TOKEN, self._made, None, *keys)
        return self._next

    def taken(self) -> None:
        """The rotation was acknowledged: the next `renewed` makes a new secret."""
        self._next = None

    def proof(self) -> ClientHandshake:
        """Start a login with the current secret."""
        if not self._secrets:
            self.renewed()  # the user exists already
        secret = self._secrets[self.tried % len(self._secrets)]
        shown = Credentials(f"{self.name}/{_ID}", secret, is_token=True, iterations=TOKEN_ITERATIONS)
        return shown.proof(self._nonce)

    def has_another(self, tried: int) -> bool:
        """Record that a login with secret `tried` was refused; return True if a secret is left to try in this round."""
        if self.tried == tried:
            self.tried += 1
        return self.tried % len(self._secrets) != 0

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self.name}-{self._nonces:016}"


def first_user() -> User:
    """Return the administrator, whose secret never changes."""
    return User(ADMIN, 1, (Login(ADMIN).renewed(),), (Rule(Operation.ADMIN),))
