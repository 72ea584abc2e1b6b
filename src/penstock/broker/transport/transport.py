"""Transport of one connection: bytes through a plain socket or TLS.

Rules: nothing here blocks. BlockingIOError means not now; `reads_wait`: a read waits until something can be sent;
`writes_wait`: a write waits until something has arrived. `has_read`: there is data to read that the socket does not
report, because it has been taken out of it already. After BlockingIOError, `send` and `send_file` must be called again
with the same data: TLS has begun a record with it.

On a port with TLS the first bytes tell the protocol. The first TLS message begins with a record of its versions, and a
Penstock frame that began like it would be longer than any first frame may be:

    TLS      16 03 01…04    ClientHello
    frame    u32 length     HELLO_BYTES_MAX at most: byte 2 is 0

A client that speaks no TLS there is read up to its first frame, and gets an error. Nothing is sent before the
handshake.

kTLS: if the kernel takes over the key (module `tls`, OpenSSL 3 built with it), files are sent with sendfile(2), and the
kernel encrypts. The kernel itself is queried for each connection: a false positive would send plain text. Otherwise a
slice is read and encrypted in the process. OpenSSL buffers one record each way, and no more: records are written one by
one, so that a record not taken by the socket is all that it holds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.broker.transport.tls_handshakes import TlsHandshakes
from penstock.messages import Request

# Encrypted per turn without kernel TLS; SENDFILE_SLICE_BYTES would cost twice as much
_TLS_SLICE_BYTES = 256 * limits.KIB
_MSG_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: a head waits for the data behind it
_RECORD_BYTES = limits.TLS_RECORD_BYTES
_FIRST_BYTES = 3  # distinguish TLS from a frame
_HANDSHAKE, _MAJOR, _MINORS = 0x16, 0x03, range(1, 5)
_SOL_TLS, _TLS_TX = 282, 1  # from linux/tls.h
_CRYPTO_INFO = struct.Struct("=HH")  # from linux/tls.h: version, cipher
_VERSIONS = (0x0303, 0x0304)


class HandshakeError(OSError):
    """The peer was sent the reason as a TLS alert, which must be sent out before the socket is closed."""


class PeerCertificate(NamedTuple):
    """Subject of a peer's certificate, and which of our authorities verifies it."""

    subject: str  # its common name, or else its whole name
    names: tuple[str, ...]  # DNS names and addresses
    is_client: bool  # it verifies against `tls_client_ca`
    is_broker: bool  # it verifies against `tls_ca`


class Transport(Protocol):
    """The socket interface of a connection and its output."""

    reads_wait: bool
    writes_wait: bool
    sends_files: bool
    """True if `send_file` works."""
    slice_bytes: int
    """Bytes that may be sent in one turn."""
    certificate: PeerCertificate | None
    sock: socket.socket

    def fileno(self) -> int:
        """Return the socket's descriptor; always the same."""

    @property
    def has_read(self) -> bool:
        """True if `recv` has data although the socket may not."""

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; empty at the end."""

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:
        """Return how many bytes were taken; `more`: further data follows at once."""

    def send_file(self, fileno: int, position: int, size: int) -> int:
        """Send part of a file; return how many bytes were taken, 0 at its end."""

    def refusal(self, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Return why a request is not accepted from this peer, or None."""

    def shut_down(self) -> None:
        """Send no more."""

    def close(self) -> None:
        """Close the socket."""


class PlainTransport:
    """A plain TCP socket."""

    reads_wait = writes_wait = has_read = False
    sends_files = True
    slice_bytes = limits.SENDFILE_SLICE_BYTES
    certificate: PeerCertificate | None = None

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        return self.sock.fileno()

    def recv(self, size: int) -> bytes:
        return self.sock.recv(size)

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:
        return self.sock.send(data, _MSG_MORE if more else 0)

    def send_file(self, fileno: int, position: int, size: int) -> int:
        return os.sendfile(self.sock.fileno(), fileno, position, size)

    def refusal(self, request: Request, *, is_peer: bool) -> RemoteError | None:
        return None

    def shut_down(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()


class _State(Enum):
    NEW = auto()  # nothing has arrived
    PLAIN = auto()  # the peer speaks no TLS
    HANDSHAKE = auto()
    OPEN = auto()
    SHUT = auto()  # we send no more; input is not even decrypted


class TlsPolicy(Protocol):
    """TLS settings: which certificates are accepted for what."""

    def context(self) -> ssl.SSLContext:
        """Return the context for one more connection."""

    def certificate_of(self, sock: ssl.SSLSocket) -> PeerCertificate | None:
        """Return the peer's certificate from the handshake; None if there was none."""

    def refusal(self, certificate: PeerCertificate | None, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Return why the request is not accepted with this certificate, or None."""


class TlsTransport:
    """The accepting side of TLS. `give_way` closes the connection if there are too many handshakes."""

    slice_bytes = _TLS_SLICE_BYTES

    def __init__(self, sock: socket.socket, peer: str, policy: TlsPolicy, handshakes: TlsHandshakes) -> None:
        """Raise OSError if the peer has disconnected."""
        self.reads_wait = self.writes_wait = False
        self.sends_files = False
        self.certificate: PeerCertificate | None = None
        self.sock = sock
        self.give_way: Callable[[], None] = self.close
        self._peer = peer
        self._policy = policy
        self._handshakes = handshakes
        self._tls: ssl.SSLSocket | None = None
        self._state = _State.NEW
        self._begun_bytes = 0  # size of the record that the socket has not taken completely
        self._ended: OSError | bool = False  # end of input or its error, not reported yet
        # Otherwise one or two bytes would wake the loop repeatedly, since they are only peeked at.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _FIRST_BYTES)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def has_read(self) -> bool:
        """True for the rest of a record, or the end of input."""
        return bool(self._ended) or (self._state is _State.OPEN and self._tls is not None and self._tls.pending() > 0)

    # Reading

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; continues the handshake first if it is not finished."""
        self.reads_wait = False
        if self._state is _State.NEW:
            self._look_at_first_bytes()
        if self._state is _State.HANDSHAKE:
            self._shake_hands()
        if self._state is _State.OPEN:
            return self._read(size)
        return self.sock.recv(size)

    def _look_at_first_bytes(self) -> None:
        first = self.sock.recv(_FIRST_BYTES, socket.MSG_PEEK)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if len(first) < _FIRST_BYTES or first[:2] != bytes((_HANDSHAKE, _MAJOR)) or first[2] not in _MINORS:
            self._state = _State.PLAIN  # fewer bytes arrive only at the end of input
            return
        # The wrapper owns the descriptor even if it fails.
        self.sock = self._tls = self._policy.context().wrap_socket(
            self.sock, server_side=True, do_handshake_on_connect=False
        )
        self._state = _State.HANDSHAKE
        self._handshakes.begin(self._too_many, self._peer)

    def _too_many(self) -> None:
        self.give_way()

    def _shake_hands(self) -> None:
        assert self._tls is not None
        try:
            if not self._handshakes.step(self._tls.do_handshake):
                raise BlockingIOError
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.reads_wait = True
            raise BlockingIOError from None
        except BlockingIOError:
            raise
        except OSError as error:
            self._handshakes.end(self._too_many)
            self._handshakes.failed(self._peer, error)
            self._state = _State.SHUT
            raise HandshakeError(errno.ECONNABORTED, "there was no handshake") from None
        self._handshakes.end(self._too_many)
        self.certificate = self._policy.certificate_of(self._tls)
        self.sends_files = is_encrypted_by_kernel(self._tls)
        if self.sends_files:
            self.slice_bytes = limits.SENDFILE_SLICE_BYTES
        self._state = _State.OPEN

    def _read(self, size: int) -> bytes:
        assert self._tls is not None
        ended, self._ended = self._ended, False
        if isinstance(ended, OSError):
            raise ended
        parts: list[bytes] = []
        missing = 0 if ended else size
        try:
            while missing and (data := self._tls.recv(min(missing, _RECORD_BYTES))):
                parts.append(data)
                missing -= len(data)
            self._ended = bool(missing and parts)  # report the end once all data before it has been returned
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self.reads_wait = isinstance(error, ssl.SSLWantWriteError)
            if not parts:
                raise BlockingIOError from None
        except OSError as error:
            if not parts:
                raise
            self._ended = error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Writing

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:
        """Return how many bytes were taken: whole records."""
        self.writes_wait = False
        if self._state is _State.PLAIN:
            return self.sock.send(data)
        if self._state is not _State.OPEN:
            raise BlockingIOError
        assert self._tls is not None
        if len(data) < self._begun_bytes:  # the file was truncated meanwhile
            raise ConnectionAbortedError(
                errno.ECONNABORTED, "a TLS record was begun with bytes that do not exist any more"
            )
        whole = memoryview(data)
        sent = 0
        try:
            while sent < len(whole):
                piece = whole[sent : sent + (self._begun_bytes or _RECORD_BYTES)]
                sent += self._write(self._tls, piece)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self.writes_wait = isinstance(error, ssl.SSLWantReadError)
            if not sent:
                raise BlockingIOError from None
        return sent

    def _write(self, tls: ssl.SSLSocket, piece: memoryview) -> int:
        try:
            taken = tls.send(piece)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._begun_bytes = len(piece)
            raise
        except ssl.SSLError as error:  # its numbers are OpenSSL's, not errno values
            raise ConnectionAbortedError(errno.ECONNABORTED, str(error.reason or error)) from None
        self._begun_bytes = 0
        return taken

    def send_file(self, fileno: int, position: int, size: int) -> int:
        """Send with sendfile(2); the kernel encrypts."""
        assert self.sends_files
        return os.sendfile(self.sock.fileno(), fileno, position, size)

    # Who is there, and the end

    def refusal(self, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Refuse everything from a peer without TLS; otherwise apply the settings."""
        if self._state is _State.PLAIN:
            text = "this broker speaks TLS: connect with tls=True, --tls-ca FILE or tls://HOST:PORT"
            return RemoteError(ErrorCode.TLS_REQUIRED, text)
        return self._policy.refusal(self.certificate, request, is_peer=is_peer)

    def shut_down(self) -> None:
        """Send no more: close_notify, then shut down the socket's sending half."""
        self._say_end()
        self.sock.shutdown(socket.SHUT_WR)
        if self._state is _State.OPEN:
            self._state = _State.SHUT

    def _say_end(self) -> None:
        if self._state is _State.OPEN and not self._begun_bytes:
            assert self._tls is not None
            with contextlib.suppress(OSError, ValueError):  # the peer may have disconnected, or have sent more
                self._tls.unwrap()

    def close(self) -> None:
        self._handshakes.end(self._too_many)
        self._say_end()
        self._ended = False
        self._state = _State.SHUT
        self.sock.close()


def is_encrypted_by_kernel(sock: socket.socket) -> bool:
    """True if the kernel reports that it encrypts what is written to the socket."""
    try:
        info = sock.getsockopt(_SOL_TLS, _TLS_TX, _CRYPTO_INFO.size)
    except (OSError, AttributeError):
        return False
    if len(info) != _CRYPTO_INFO.size:
        return False
    version, cipher = _CRYPTO_INFO.unpack(info)
    return version in _VERSIONS and cipher != 0
