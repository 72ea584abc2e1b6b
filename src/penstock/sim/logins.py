"""Users' side of a login: what they show, and whom the first administrator is.

Rules: secrets are made of names and numbers, so that a seed is the same every time; the exchange is the real one. Who
cannot log in tries what he had before his secret was rotated: he may not have heard what became of that.
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
"""A user whose rules never change: it may do all but administer."""

_ID = "main"
_SECRETS_KEPT = 4


class Login:
    """What one user shows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._made = 0
        self._secrets: list[str] = []  # the newest first
        self.tried = 0  # how often another one was shown
        self._nonces = 0
        self._next: Credential | None = None

    def renewed(self) -> Credential:
        """What checks the next secret: the same one until it is `taken`, however often it is asked for."""
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
        """It was acknowledged: the next one will be another."""
        self._next = None

    def proof(self) -> ClientHandshake:
        """A login with what is shown now."""
        if not self._secrets:
            self.renewed()  # of somebody who is made already
        secret = self._secrets[self.tried % len(self._secrets)]
        shown = Credentials(f"{self.name}/{_ID}", secret, is_token=True, iterations=TOKEN_ITERATIONS)
        return shown.proof(self._nonce)

    def has_another(self, tried: int) -> bool:
        """That try was refused, on whichever broker: whether there is a secret that was not shown in this round."""
        if self.tried == tried:
            self.tried += 1
        return self.tried % len(self._secrets) != 0

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self.name}-{self._nonces:016}"


def first_user() -> User:
    """The administrator, whose secret stays what it is."""
    return User(ADMIN, 1, (Login(ADMIN).renewed(),), (Rule(Operation.ADMIN),))
