"""Frame encryption between brokers that have authenticated each other with the cluster's secret.

Rules: encryption starts in both directions with the frame after the last login message and lasts as long as the
connection. It is not negotiated: brokers that log in always encrypt, with or without TLS below, so a man in the middle
cannot downgrade them. A relay that forwards a login without knowing the secret does not have the key and can neither
read nor inject frames. A frame that fails to decrypt ends the connection: it was changed, replayed, reordered, or an
earlier frame was dropped.

The frame is an ordinary one with checksums (`frames`), whose parts are replaced:

    body   ChaCha20-Poly1305 of: u8 has_raw, body      associated data: api, version, correlation_id, raw_bytes
    raw    has_raw = 1: ChaCha20-Poly1305 of the raw part
           has_raw = 0: nothing; or batches as they are on disk (`CLEAR`), sent with sendfile(2)

Everything that can hold password verifiers is encrypted: Raft entries and snapshots, forwarded client requests and all
answers. Batches are not: only TLS keeps messages secret on the network.

Each direction has its own key, derived from the login's key, and counts its encryptions. The count is the nonce (RFC
8439), 12 bytes, little-endian: a nonce is never reused, and the order of frames is authenticated.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import Api
from penstock.wire.frames import Buffer, Frame, encode_checked_head

CLEAR = frozenset({Api.REPLICA_FETCH, Api.REPLICA_RANGE})
"""Requests whose answers carry batches as their raw part, which may be sent unencrypted from a file."""

_ADDED = struct.Struct("<HHII")
_TAG_BYTES = 16
_NONCE_BYTES = 12
_NO_RAW, _HAS_RAW = b"\0", b"\1"
_LABELS = (b"penstock brokers 1: from who dials", b"penstock brokers 1: to who dials")

assert limits.FRAME_ENCRYPTION_BYTES == 1 + 2 * _TAG_BYTES


class FrameCipher:
    """Encrypts and decrypts both directions of one connection. `key`: 32 bytes, from the login."""

    def __init__(self, key: bytes, *, is_dialler: bool) -> None:
        assert len(key) == 32, len(key)
        keys = [hmac.digest(key, label, "sha256") for label in _LABELS]
        ours, theirs = keys if is_dialler else reversed(keys)
        self._ours, self._theirs = _Direction(ours), _Direction(theirs)

    def encrypted(
        self, api: int, version: int, correlation_id: int, body: bytes, raw: Iterable[Buffer], clear_bytes: int = 0
    ) -> tuple[bytes, ...]:
        """Encrypt the next frame and return its parts. The caller must send them, or the peer cannot decrypt later
        frames.

        `clear_bytes`: bytes of files that follow unencrypted; `raw` is then empty.
        """
        whole = b"".join(raw)
        assert not clear_bytes or (api in CLEAR and not whole)
        raw_bytes = len(whole) + _TAG_BYTES if whole else clear_bytes
        added = _ADDED.pack(api, version, correlation_id, raw_bytes)
        parts = [self._ours.encrypted((_HAS_RAW if whole else _NO_RAW) + body, added)]
        if whole:
            parts.append(self._ours.encrypted(whole, b""))
        head = encode_checked_head(
            api, version, correlation_id, parts[0], raw_bytes, None if clear_bytes else parts[1:]
        )
        return (head, *parts[1:])

    def decrypted(self, frame: Frame) -> Frame:
        """Decrypt the peer's next frame. RemoteError damaged_frame: it is unencrypted, altered or out of order."""
        added = _ADDED.pack(frame.api, frame.version, frame.correlation_id, len(frame.raw))
        body = self._theirs.decrypted(frame.body, added)
        if body[:1] == _HAS_RAW:
            return frame._replace(body=body[1:], raw=self._theirs.decrypted(bytes(frame.raw), b""))
        if frame.raw and frame.api not in CLEAR:
            raise _refused()
        return frame._replace(body=body[1:])


class _Direction:
    """The key of one direction and its nonce counter."""

    def __init__(self, key: bytes) -> None:
        from nacl import bindings  # imported only where brokers log in, since it loads a crypto library

        self._bindings = bindings
        self._key = key
        self._count = 0

    def _nonce(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(_NONCE_BYTES, "little")

    def encrypted(self, data: bytes, added: bytes) -> bytes:
        encrypt = self._bindings.crypto_aead_chacha20poly1305_ietf_encrypt
        return bytes(encrypt(data, added, self._nonce(), self._key))

    def decrypted(self, data: bytes, added: bytes) -> bytes:
        from nacl.exceptions import CryptoError

        if len(data) < _TAG_BYTES:
            raise _refused()
        try:
            return bytes(
                self._bindings.crypto_aead_chacha20poly1305_ietf_decrypt(data, added, self._nonce(), self._key)
            )
        except CryptoError:
            raise _refused() from None


def _refused() -> RemoteError:
    text = (
        "a frame does not decrypt with the key of the login: it was changed on its way, or the other side is of a "
        "version that does not encrypt"
    )
    return RemoteError(ErrorCode.DAMAGED_FRAME, text)
