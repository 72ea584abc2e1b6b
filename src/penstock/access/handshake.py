"""Both sides of a login: two messages each way, for either mechanism.

Rules: a login is one attempt on either side; after a failure it accepts no further message. The broker does not reveal
which users exist: an unknown name gets a challenge like any other, always with the same salt, and fails at the end. The
broker names an expired credential as the reason only after its proof. The client computes one proof, for one challenge,
and does not accept a broker that declares the login done before it has sent a challenge.

`ServerHandshake.take`:

| message           | state before | after                 |
|-------------------|--------------|-----------------------|
| first             | NEW          | CHALLENGED            |
| final             | CHALLENGED   | DONE: `who` is set    |
| any other         | any          | FAILED                |

`ClientHandshake.take`, with the broker's answer:

| answer            | state before | after                                     |
|-------------------|--------------|-------------------------------------------|
| a challenge       | BEGUN        | PROVED: the final message is to be sent   |
| done, signed      | PROVED       | DONE                                      |
| any other         | any          | FAILED                                    |
"""

from __future__ import annotations

import hmac
from enum import Enum, auto
from typing import NamedTuple, Protocol

from penstock.access import nkeys, scram
from penstock.access.nkeys import NkeyServer
from penstock.access.scram import ScramServer, ScramVerifier, refused
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.errors import RemoteError

MECHANISMS = (scram.MECHANISM, nkeys.MECHANISM)
"""Mechanisms that brokers accept, in the order of their preference."""


class Principal(NamedTuple):
    """A user that is logged in, and the credential used; or another broker."""

    name: str
    made_index: int = 0  # of the user: a user that was deleted and created again is another one
    credential_id: str = ""
    mark: bytes = b""  # of the credential: another one may have its id by now

    def __str__(self) -> str:
        return self.name


def sharer_of(who: Principal | None) -> str:
    """Return the user that a waiting request counts for; empty without authentication and for brokers."""
    return "" if who is None or who.name == BROKER else who.name


class CredentialDirectory(Protocol):
    """Lookup of users and their credentials."""

    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        """Return the verifier and the principal for `user` or `user/credential`; None if there is none."""

    def holder(self, public_key: str) -> Principal | None:
        """Return the principal with that public nkey; None if there is none."""

    def expired(self, who: Principal) -> str | None:
        """Return the error for a principal whose credential has expired; None if it has not."""

    @property
    def decoy_key(self) -> bytes:
        """Secret of the cluster, from which the salts for unknown users are derived."""


class _State(Enum):
    NEW = auto()
    CHALLENGED = auto()
    DONE = auto()
    FAILED = auto()


class _ClientState(Enum):
    NEW = auto()
    BEGUN = auto()
    PROVED = auto()
    DONE = auto()
    FAILED = auto()


class Proof(Protocol):
    """The client's side of a mechanism."""

    mechanism: str

    def first(self) -> bytes:
        """Return the first message."""

    def prove(self, challenge: bytes) -> bytes:
        """Return the final message. RemoteError unauthenticated: the challenge is invalid. It may take a second."""

    def check(self, final: bytes) -> None:
        """Raise RemoteError unauthenticated if the broker does not prove that it knows the user."""

    @property
    def session_key(self) -> bytes:
        """Key that only the two sides know once the login is checked; empty if the mechanism gives none."""


class ClientHandshake:
    """The client's side of one login."""

    def __init__(self, proof: Proof) -> None:
        self.mechanism = proof.mechanism
        self._proof = proof
        self._state = _ClientState.NEW

    def first(self) -> bytes:
        """Return the first message; call it once."""
        assert self._state is _ClientState.NEW, self._state
        self._state = _ClientState.BEGUN
        return self._proof.first()

    def take(self, data: bytes, *, is_done: bool) -> bytes | None:
        """Return the next message after a broker's answer; None: the login is done.

        RemoteError unauthenticated: the answer is invalid or out of order. With a password it takes a tenth of a
        second.
        """
        before, self._state = self._state, _ClientState.FAILED
        if before is _ClientState.BEGUN and is_done:
            raise refused("the broker declares the login done without a challenge, and without a proof of its own")
        if before is _ClientState.BEGUN:
            final = self._proof.prove(data)
            self._state = _ClientState.PROVED
            return final
        if before is _ClientState.PROVED and is_done:
            self._proof.check(data)
            self._state = _ClientState.DONE
            return None
        raise refused("the broker's message does not belong to a login, or came twice")

    @property
    def is_done(self) -> bool:
        """True once both sides have proved what they had to."""
        return self._state is _ClientState.DONE

    @property
    def session_key(self) -> bytes:
        """Key that only the two sides know; of SCRAM."""
        assert self.is_done
        return self._proof.session_key


class ServerHandshake:
    """The broker's side of one login. `nonce`: random, for this login only."""

    def __init__(self, directory: CredentialDirectory, nonce: str) -> None:
        self.who: Principal | None = None  # set once it is proved
        self.claimed = ""  # name in the first message, for the log; not proved
        self._directory = directory
        self._nonce = nonce
        self._state = _State.NEW
        self._mechanism = ""
        self._checker: ScramServer | NkeyServer | None = None
        self._wanted: Principal | None = None

    def take(self, mechanism: str, data: bytes) -> bytes:
        """Return the answer to a message. RemoteError unauthenticated: the connection must be closed."""
        try:
            if self._state is _State.NEW:
                self._mechanism = mechanism
                answer = self._first(mechanism, data)
                self._state = _State.CHALLENGED
                return answer
            if self._state is _State.CHALLENGED and mechanism == self._mechanism:
                assert self._checker is not None
                answer = self._checker.check(data)
                if self._wanted is None:
                    raise refused()
                if (text := self._directory.expired(self._wanted)) is not None:
                    raise refused(text)
                self._state, self.who = _State.DONE, self._wanted
                return answer
            raise refused("the message does not belong to a login: connect again")
        except RemoteError:
            self._state = _State.FAILED
            raise

    @property
    def is_done(self) -> bool:
        """True once the client has proved its identity."""
        return self._state is _State.DONE

    @property
    def session_key(self) -> bytes:
        """Key that only the two sides know; of SCRAM."""
        assert self.is_done
        assert self._checker is not None
        return self._checker.session_key

    def _first(self, mechanism: str, data: bytes) -> bytes:
        if mechanism == scram.MECHANISM:
            self.claimed = ScramServer.name_in(data)[0]
            found = self._directory.verifier(self.claimed)
            verifier, self._wanted = found or (self._decoy(self.claimed), None)
            scram_server = self._checker = ScramServer(self._nonce)
            return scram_server.challenge(data, verifier)
        if mechanism == nkeys.MECHANISM:
            self.claimed = NkeyServer.key_in(data)
            self._wanted = self._directory.holder(self.claimed)
            nkey_server = self._checker = NkeyServer(self._nonce)
            return nkey_server.challenge(data)
        raise refused(f"{mechanism!r} is not known here; {' and '.join(MECHANISMS)} are")

    def _decoy(self, name: str) -> ScramVerifier:
        """Return a verifier for an unknown user: no proof passes it, and it looks the same on every broker."""
        salt = hmac.digest(self._directory.decoy_key, name.encode(), "sha256")[: limits.SALT_BYTES]
        iterations = 1 if "/" in name else limits.PASSWORD_ITERATIONS
        return ScramVerifier(salt, iterations, bytes(32), bytes(32))
