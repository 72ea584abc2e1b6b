"""NATS nkeys: the client signs a nonce made by both sides; the broker knows only the public half of the key.

client → n=PUBLIC_KEY,r=NONCE
broker → r=NONCE+MORE
client → r=NONCE+MORE,s=SIGNATURE            Ed25519, of `_SIGNED` and NONCE+MORE, in base64
broker → (nothing)
"""

from __future__ import annotations

import base64
import binascii
import re

from penstock.access.scram import refused
from penstock.base.errors import OperationalError

MECHANISM = "NKEY"
_SIGNED = b"penstock nkey login\0"  # domain separation: a signature made for this is valid for nothing else
_FIRST = re.compile(rb"n=(U[A-Z2-7]{55}),r=([\x21-\x2b\x2d-\x7e]{16,256})")
_FINAL = re.compile(rb"r=([\x21-\x2b\x2d-\x7e]{16,512}),s=([A-Za-z0-9+/=]{88})")
_CHALLENGE = re.compile(rb"r=([\x21-\x2b\x2d-\x7e]{16,512})")


class NkeyServer:
    """The broker's side. Every method raises RemoteError unauthenticated for an invalid message."""

    session_key = b""  # none: no secret is known to both sides alone

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._public_key = ""

    @staticmethod
    def key_in(first: bytes) -> str:
        """Return the public key that the client claims."""
        if (found := _FIRST.fullmatch(first)) is None:
            raise refused("an NKEY message is n=PUBLIC_KEY,r=NONCE, with the public key of a user (U…)")
        return found[1].decode()

    def challenge(self, first: bytes) -> bytes:
        """Return the nonce to sign."""
        found = _FIRST.fullmatch(first)
        if found is None:
            raise refused()
        self._public_key, self._nonce = found[1].decode(), found[2] + self._nonce
        return b"r=" + self._nonce

    def check(self, final: bytes) -> bytes:
        """Check the signature of that key; return the answer."""
        found = _FINAL.fullmatch(final)
        if found is None or found[1] != self._nonce or not _is_signed(self._public_key, self._nonce, found[2]):
            raise refused()
        return b""


class NkeyClient:
    """The client's side. OperationalError: the seed is invalid."""

    def __init__(self, seed: str, nonce: str) -> None:
        import nkeys  # only where it is used: it loads a crypto library

        try:
            prefix, raw = nkeys.decode_seed(seed.encode())
            if nkeys.encode_seed(raw, prefix) != seed.encode():  # `decode_seed` does not verify the checksum
                raise ValueError(seed)
            self._pair = nkeys.from_seed(seed.encode())
            self.public_key: str = self._pair.public_key.decode()
        except (nkeys.NkeysError, ValueError):
            raise OperationalError("the nkey seed is damaged: it is 58 characters that begin with SU") from None
        self._nonce = nonce

    def first(self) -> bytes:
        return f"n={self.public_key},r={self._nonce}".encode()

    def prove(self, challenge: bytes) -> bytes:
        found = _CHALLENGE.fullmatch(challenge)
        if found is None or not found[1].startswith(self._nonce.encode()) or len(found[1]) == len(self._nonce):
            raise refused("the broker's challenge is invalid")
        signature: bytes = self._pair.sign(_SIGNED + found[1])
        return b"r=" + found[1] + b",s=" + base64.b64encode(signature)


def public_key_mistake(public_key: str) -> str | None:
    """Return why this is not the public nkey of a user; None if it is. It may be a secret, so it is not quoted."""
    if _raw(public_key) is not None:
        return None
    if public_key.strip().startswith("S"):
        return "that looks like an nkey seed, which must stay secret: give its public key (U…)"
    return "that is not the public nkey of a user: it is 56 characters that begin with U"


def _raw(public_key: str) -> bytes | None:
    """Return the 32 bytes in a user's public key; None if it is invalid."""
    import nkeys

    try:
        decoded = base64.b32decode(public_key.encode())
        crc = int.from_bytes(decoded[-2:], "little")
        is_sound = len(decoded) == 35 and decoded[0] == nkeys.PREFIX_BYTE_USER and nkeys.crc16(decoded[:-2]) == crc
    except (binascii.Error, ValueError):
        return None
    return decoded[1:-2] if is_sound else None


def _is_signed(public_key: str, nonce: bytes, signature: bytes) -> bool:
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    raw = _raw(public_key)
    if raw is None:
        return False
    try:
        VerifyKey(raw).verify(_SIGNED + nonce, base64.b64decode(signature, validate=True))
    except (BadSignatureError, binascii.Error, ValueError, TypeError):
        return False
    return True
