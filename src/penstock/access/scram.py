"""SCRAM-SHA-256 (RFC 5802, RFC 7677): proofs that somebody knows a secret, which do not tell it.

Rules: the secret is never sent, neither is anything from which it can be guessed faster than by trying it with all the
iterations; the broker proves that it knows what checks it, too. What a broker keeps is a salt, two keys and a count.
An exchange gives both sides a key (RFC 5802, section 8) that nobody else has who has read it.
The text is that of the RFC without channel binding, so that any client library speaks it. A name, the salt and both
nonces are covered by both proofs. Proofs are compared in constant time.

    client → n,,n=NAME,r=CHANCE
    broker → r=CHANCE+MORE,s=SALT,i=ITERATIONS
    client → c=biws,r=CHANCE+MORE,p=PROOF
    broker → v=SIGNATURE
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import unicodedata
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError

MECHANISM = "SCRAM-SHA-256"
_GS2 = "n,,"  # no channel binding, nobody else's name
_BOUND = base64.b64encode(_GS2.encode()).decode()
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,256}")


class Verifier(NamedTuple):
    """What checks a proof, and proves that it is there."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted(secret: str, salt: bytes, iterations: int) -> bytes:
    """The secret as the keys are made of it: some 0.2 µs for each iteration."""
    text = unicodedata.normalize("NFKC", secret).encode()
    return hashlib.pbkdf2_hmac("sha256", text, salt, iterations)


def verifier_of(secret: str, salt: bytes, iterations: int) -> Verifier:
    """What is kept of a secret."""
    salted_secret = salted(secret, salt, iterations)
    return Verifier(salt, iterations, _hash(_mac(salted_secret, b"Client Key")), _mac(salted_secret, b"Server Key"))


def refused(text: str = "the name or the secret is wrong") -> RemoteError:
    """The same for every reason that would tell something about users."""
    return RemoteError(ErrorCode.UNAUTHENTICATED, text)


class ScramServer:
    """The broker's side. RemoteError unauthenticated."""

    def __init__(self, nonce: str) -> None:
        """`nonce` is drawn by chance, for this exchange only."""
        self._nonce = nonce
        self.session_key = b""  # once the proof is checked
        self._said = ""
        self._verifier: Verifier | None = None

    @staticmethod
    def name_in(first: bytes) -> tuple[str, str]:
        """The name in a first message, and the client's nonce."""
        text = _text(first)
        if not text.startswith(_GS2):
            raise refused("no channel binding is spoken here: a SCRAM message begins with n,,")
        fields = _fields(text[len(_GS2) :], "nr")
        if not _NONCE.fullmatch(fields["r"]):
            raise refused("the nonce of a SCRAM message is no nonce")
        return fields["n"].replace("=2C", ",").replace("=3D", "="), fields["r"]

    def challenge(self, first: bytes, verifier: Verifier) -> bytes:
        """The answer to a first message of somebody whose secret that checks."""
        _, nonce = self.name_in(first)
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(verifier.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._said = f"{_text(first)[len(_GS2) :]},{challenge}"
        self._verifier = verifier
        return challenge.encode()

    def check(self, final: bytes) -> bytes:
        """The answer to a final message that proves that the secret is known."""
        if self._verifier is None:
            raise refused()
        text = _text(final)
        fields = _fields(text, "crp")
        proof = _bytes(fields["p"])
        if fields["c"] != _BOUND or fields["r"] != self._nonce or len(proof) != 32:
            raise refused()
        said = f"{self._said},{text.rpartition(',p=')[0]}".encode()
        client_key = _xor(proof, _mac(self._verifier.stored_key, said))
        if not hmac.compare_digest(_hash(client_key), self._verifier.stored_key):
            raise refused()
        self.session_key = _session_key(self._verifier.stored_key, client_key, said)
        return b"v=" + base64.b64encode(_mac(self._verifier.server_key, said))


class ScramClient:
    """The other side. `salted` may be remembered by who is asked again with the same salt."""

    def __init__(self, name: str, secret: str, nonce: str, *, iterations: int) -> None:
        """`iterations`: no other number is taken. With fewer the proof is guessed sooner, more keep the client busy."""
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._nonce = nonce
        self._secret = secret
        self._iterations = iterations
        self._signature: bytes | None = None  # that the broker gives, once this side has proved
        self.session_key = b""  # once this side has proved

    def first(self) -> bytes:
        """The first message."""
        return f"{_GS2}{self._bare}".encode()

    def asked(self, challenge: bytes) -> tuple[bytes, int]:
        """(salt, iterations) that a challenge asks for. RemoteError unauthenticated: it is none."""
        fields = _fields(_text(challenge), "rsi")
        iterations = int(fields["i"]) if re.fullmatch(r"[0-9]{1,9}", fields["i"]) else 0
        if not fields["r"].startswith(self._nonce) or len(fields["r"]) == len(self._nonce):
            raise refused("the broker's challenge is no answer to this login")
        if iterations != self._iterations:
            raise refused(
                f"the broker asks for {fields['i'][:9]} iterations of the secret, and all brokers ask for "
                f"{self._iterations}: whoever is there wants to guess it, or to keep this client busy"
            )
        return _bytes(fields["s"]), iterations

    def prove(self, challenge: bytes, salted_secret: bytes | None = None) -> bytes:
        """The final message. RemoteError unauthenticated: the challenge is none."""
        salt, iterations = self.asked(challenge)
        if salted_secret is None:
            salted_secret = salted(self._secret, salt, iterations)
        client_key = _mac(salted_secret, b"Client Key")
        nonce = _fields(_text(challenge), "rsi")["r"]
        without_proof = f"c={_BOUND},r={nonce}"
        said = f"{self._bare},{_text(challenge)},{without_proof}".encode()
        stored_key = _hash(client_key)
        self._signature = _mac(_mac(salted_secret, b"Server Key"), said)
        self.session_key = _session_key(stored_key, client_key, said)
        proof = _xor(client_key, _mac(stored_key, said))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, final: bytes) -> None:
        """RemoteError unauthenticated: who answered does not know what checks the secret."""
        given = _bytes(_fields(_text(final), "v")["v"])
        if self._signature is None or not hmac.compare_digest(given, self._signature):
            raise refused("the broker does not prove that it knows this user: it may be another one than is meant")


def _session_key(stored_key: bytes, client_key: bytes, said: bytes) -> bytes:
    """Of all that was said, so of both names and nonces, and of a key that only who knows the secret has."""
    return _mac(stored_key, b"GSS-API session key" + client_key + said)


def _text(message: bytes) -> str:
    try:
        return message.decode("ascii")
    except UnicodeDecodeError:
        raise refused("a SCRAM message is not text") from None


def _fields(text: str, names: str) -> dict[str, str]:
    """`n=…,r=…` by name; just these, in this order."""
    parts = text.split(",")
    if len(parts) != len(names) or any(
        not part.startswith(f"{name}=") for part, name in zip(parts, names, strict=True)
    ):
        raise refused(f"a SCRAM message has not the parts {', '.join(names)}")
    return {part[0]: part[2:] for part in parts}


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise refused("a part of a SCRAM message is not base64") from None


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))
