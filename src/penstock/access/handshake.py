"""Both sides of a login: two messages each way, of either mechanism.

Rules: a login is one attempt on either side; after a failure it takes nothing more. The broker's side tells nothing of
which users there are: an unknown name is challenged like any other, always with the same salt, and fails at the end. A
credential that has expired is named as the reason only after its proof. The client's side computes one proof, for one
challenge, and believes no broker that calls the login done before it has challenged.

`ServerHandshake.take`:

| message           | state before | after                 |
|-------------------|--------------|-----------------------|
| first             | NEW          | CHALLENGED            |
| final             | CHALLENGED   | DONE: `who` is set    |
| any other         | any          | FAILED                |

`ClientHandshake.take`, with what the broker answers:

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
from penstock.access.scram import ScramServer, Verifier, refused
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.errors import RemoteError

MECHANISMS = (scram.MECHANISM, nkeys.MECHANISM)
"""What brokers take, in the order of their preference."""


class Principal(NamedTuple):
    """Somebody who has proved to be a user, and with what; or another broker."""

    name: str
    made_index: int = 0  # of the user, so that one who was deleted and made again is another one
    credential_id: str = ""
    mark: bytes = b""  # of the credential: another one may have its id by now

    def __str__(self) -> str:
        return self.name


def sharer_of(who: Principal | None) -> str:
    """For whom it counts what waits; empty: for nobody who is to share: nobody had to log in, or a broker asks."""
    return "" if who is None or who.name == BROKER else who.name


class Directory(Protocol):
    """Who is known."""

    def verifier(self, name: str) -> tuple[Verifier, Principal] | None:
        """What checks the secret of `user` or `user/credential`, and who that is; None: nobody."""

    def holder(self, public_key: str) -> Principal | None:
        """Whose nkey that is; None: nobody's."""

    def expired(self, who: Principal) -> str | None:
        """What to tell somebody who has proved that, and whose time is over; None: it is not."""

    @property
    def decoy_key(self) -> bytes:
        """A secret of the cluster, from which salts are made for those who are not there."""


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
    """What the client's side of a mechanism computes."""

    mechanism: str

    def first(self) -> bytes:
        """The first message."""

    def prove(self, challenge: bytes) -> bytes:
        """The final message. RemoteError unauthenticated: the challenge is none. It may take a second."""

    def check(self, final: bytes) -> None:
        """RemoteError unauthenticated: the other side does not know who this is."""

    @property
    def session_key(self) -> bytes:
        """What both sides know once it is checked, and nobody else; empty where the mechanism gives none."""


class ClientHandshake:
    """See the module."""

    def __init__(self, proof: Proof) -> None:
        self.mechanism = proof.mechanism
        self._proof = proof
        self._state = _ClientState.NEW

    def first(self) -> bytes:
        """The first message; once."""
        assert self._state is _ClientState.NEW, self._state
        self._state = _ClientState.BEGUN
        return self._proof.first()

    def take(self, data: bytes, *, is_done: bool) -> bytes | None:
        """The message that follows an answer of the broker; None: the login is done.

        RemoteError unauthenticated: the answer is none that may come now. Of a password it takes a tenth of a second.
        """
        before, self._state = self._state, _ClientState.FAILED
        if before is _ClientState.BEGUN and is_done:
            raise refused("the broker calls the login done before it has asked for a proof, and has given none itself")
        if before is _ClientState.BEGUN:
            final = self._proof.prove(data)
            self._state = _ClientState.PROVED
            return final
        if before is _ClientState.PROVED and is_done:
            self._proof.check(data)
            self._state = _ClientState.DONE
            return None
        raise refused("what the broker says is no part of a login, or came twice")

    @property
    def is_done(self) -> bool:
        """Whether both sides have proved what they had to."""
        return self._state is _ClientState.DONE

    @property
    def session_key(self) -> bytes:
        """What both sides know now, and nobody else; of SCRAM."""
        assert self.is_done
        return self._proof.session_key


class ServerHandshake:
    """See the module. `nonce`: drawn by chance."""

    def __init__(self, directory: Directory, nonce: str) -> None:
        self.who: Principal | None = None  # once it is proved
        self.claimed = ""  # by the first message, for the log; not proved
        self._directory = directory
        self._nonce = nonce
        self._state = _State.NEW
        self._mechanism = ""
        self._checker: ScramServer | NkeyServer | None = None
        self._wanted: Principal | None = None

    def take(self, mechanism: str, data: bytes) -> bytes:
        """The answer to a message. RemoteError unauthenticated: the connection is at its end."""
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
            raise refused("that is no part of a login: connect again")
        except RemoteError:
            self._state = _State.FAILED
            raise

    @property
    def is_done(self) -> bool:
        """Whether it is known who is there."""
        return self._state is _State.DONE

    @property
    def session_key(self) -> bytes:
        """What both sides know now, and nobody else; of SCRAM."""
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

    def _decoy(self, name: str) -> Verifier:
        """For somebody who is not there: what nothing passes, and looks the same on every broker."""
        salt = hmac.digest(self._directory.decoy_key, name.encode(), "sha256")[: limits.SALT_BYTES]
        iterations = 1 if "/" in name else limits.PASSWORD_ITERATIONS
        return Verifier(salt, iterations, bytes(32), bytes(32))
