"""SCRAM-SHA-256 (RFC 5802, RFC 7677): prove knowledge of a secret without revealing it.

Rules: the secret is never sent, nor any value from which it can be guessed faster than by trying candidates with all
iterations; the broker, too, proves that it knows the verifier. The broker stores a salt, two keys and an iteration
count. An exchange gives both sides a session key (RFC 5802, section 8) that an eavesdropper cannot compute. The
messages are those of the RFC without channel binding, so any client library can produce them. Both proofs cover the
name, the salt and both nonces. Proofs are compared in constant time.

    client → n,,n=NAME,r=NONCE
    broker → r=NONCE+MORE,s=SALT,i=ITERATIONS
    client → c=biws,r=NONCE+MORE,p=PROOF
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
_GS2 = "n,,"  # no channel binding, no authorisation identity
_BOUND = base64.b64encode(_GS2.encode()).decode()
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,256}")


class ScramVerifier(NamedTuple):
    """Verifies a client's proof, and lets the broker prove that it knows the user."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted(secret: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted secret, from which the keys are derived: some 0.2 µs for each iteration."""
    text = unicodedata.normalize("NFKC", secret).encode()
    return hashlib.pbkdf2_hmac("sha256", text, salt, iterations)


def verifier_of(secret: str, salt: bytes, iterations: int) -> ScramVerifier:
    """Return the verifier to store for a secret."""
    salted_secret = salted(secret, salt, iterations)
    return ScramVerifier(
        salt, iterations, _hash(_mac(salted_secret, b"Client Key")), _mac(salted_secret, b"Server Key")
    )


def refused(text: str = "the name or the secret is wrong") -> RemoteError:
    """Return the same error for every reason that would reveal something about users."""
    return RemoteError(ErrorCode.UNAUTHENTICATED, text)


class ScramServer:
    """The broker's side. Every method raises RemoteError unauthenticated for an invalid message."""

    def __init__(self, nonce: str) -> None:
        """`nonce`: random, for this exchange only."""
        self._nonce = nonce
        self.session_key = b""  # set once the proof is checked
        self._said = ""
        self._verifier: ScramVerifier | None = None

    @staticmethod
    def name_in(first: bytes) -> tuple[str, str]:
        """Return the name in a first message, and the client's nonce."""
        text = _text(first)
        if not text.startswith(_GS2):
            raise refused("no channel binding is spoken here: a SCRAM message begins with n,,")
        fields = _fields(text[len(_GS2) :], "nr")
        if not _NONCE.fullmatch(fields["r"]):
            raise refused("the nonce of a SCRAM message is invalid")
        return fields["n"].replace("=2C", ",").replace("=3D", "="), fields["r"]

    def challenge(self, first: bytes, verifier: ScramVerifier) -> bytes:
        """Return the answer to a first message; `verifier` is that of the named user."""
        _, nonce = self.name_in(first)
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(verifier.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._said = f"{_text(first)[len(_GS2) :]},{challenge}"
        self._verifier = verifier
        return challenge.encode()

    def check(self, final: bytes) -> bytes:
        """Check the proof in a final message; return the answer."""
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
    """The client's side. The caller may cache `salted` for the next login with the same salt."""

    def __init__(self, name: str, secret: str, nonce: str, *, iterations: int) -> None:
        """`iterations`: the only number accepted. Fewer make the secret easier to guess; more keep the client busy."""
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._nonce = nonce
        self._secret = secret
        self._iterations = iterations
        self._signature: bytes | None = None  # expected from the broker; set once this side has sent its proof
        self.session_key = b""  # set once this side has sent its proof

    def first(self) -> bytes:
        return f"{_GS2}{self._bare}".encode()

    def asked(self, challenge: bytes) -> tuple[bytes, int]:
        """Return the (salt, iterations) of a challenge. RemoteError unauthenticated: it is invalid."""
        fields = _fields(_text(challenge), "rsi")
        iterations = int(fields["i"]) if re.fullmatch(r"[0-9]{1,9}", fields["i"]) else 0
        if not fields["r"].startswith(self._nonce) or len(fields["r"]) == len(self._nonce):
            raise refused("the broker's challenge does not belong to this login")
        if iterations != self._iterations:
            raise refused(
                f"the broker asks for {fields['i'][:9]} iterations of the secret, and all brokers ask for "
                f"{self._iterations}: this may be an impostor that tries to guess the secret"
            )
        return _bytes(fields["s"]), iterations

    def prove(self, challenge: bytes, salted_secret: bytes | None = None) -> bytes:
        """Return the final message. RemoteError unauthenticated: the challenge is invalid."""
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
        """Raise RemoteError unauthenticated if the broker does not know the verifier of the secret."""
        given = _bytes(_fields(_text(final), "v")["v"])
        if self._signature is None or not hmac.compare_digest(given, self._signature):
            raise refused("the broker does not prove that it knows this user: it may be another one than is meant")


def _session_key(stored_key: bytes, client_key: bytes, said: bytes) -> bytes:
    """Derive the session key from all messages and from a key that only a client with the secret can compute."""
    return _mac(stored_key, b"GSS-API session key" + client_key + said)


def _text(message: bytes) -> str:
    try:
        return message.decode("ascii")
    except UnicodeDecodeError:
        raise refused("a SCRAM message is not text") from None


def _fields(text: str, names: str) -> dict[str, str]:
    """Return the values of `n=…,r=…` by name; exactly these names, in this order."""
    parts = text.split(",")
    if len(parts) != len(names) or any(
        not part.startswith(f"{name}=") for part, name in zip(parts, names, strict=True)
    ):
        raise refused(f"a SCRAM message must have the parts {', '.join(names)}")
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
