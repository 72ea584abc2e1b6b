"""How bytes get into one connection's socket, and out of it: as they are, or through TLS.

Rules: nothing here blocks. BlockingIOError: not now; `reads_wait` says that a read waits until something can be sent,
`writes_wait` that a write waits until something has come. `has_read` says that there is something to read of which
the socket does not tell: it has been taken out of it. What `send` and `send_file` were called with when they could not
go on is what they are called with next: TLS has begun a record with it.

On a port with TLS the first bytes say what comes. The first message of TLS begins with a record of its versions, and a
frame of ours that began like it would be longer than any first one may be:

    TLS      16 03 01…04    ClientHello
    frame    u32 length     HELLO_BYTES_MAX at most: byte 2 is 0

Who speaks no TLS there is heard as far as a first frame goes, and told. Nobody is written to before the handshake.

kTLS: where the kernel takes the key over (module `tls`, OpenSSL 3 built with it), files go out with sendfile(2) as
ever, and the kernel encrypts. Whether it has is asked of the kernel itself, for each connection: to believe it wrongly
would send plain text. Everywhere else a slice is read and encrypted in the process. OpenSSL holds one record each way,
and no more: records are written one by one, so that one which the socket does not take is all that it keeps.
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
from penstock.broker.handshakes import Handshakes
from penstock.messages import Request

_MSG_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: a head waits for what comes behind it
_RECORD_BYTES = limits.TLS_RECORD_BYTES
_FIRST_BYTES = 3  # tell TLS from a frame
_HANDSHAKE, _MAJOR, _MINORS = 0x16, 0x03, range(1, 5)
_SOL_TLS, _TLS_TX = 282, 1  # of linux/tls.h
_CRYPTO_INFO = struct.Struct("=HH")  # of linux/tls.h: version, cipher
_VERSIONS = (0x0303, 0x0304)


class HandshakeError(OSError):
    """Why was told to whoever is there, in the words of TLS: it has to be let out before the socket is closed."""


class PeerCertificate(NamedTuple):
    """Whose certificate it is, and which of our authorities vouches for it."""

    subject: str  # its common name, or else all of its name
    names: tuple[str, ...]  # DNS names and addresses
    is_client: bool  # it verifies against `tls_client_ca`
    is_broker: bool  # against `tls_ca`


class Transport(Protocol):
    """What a connection and its output use as their socket."""

    reads_wait: bool
    writes_wait: bool
    sends_files: bool
    """Whether `send_file` works."""
    slice_bytes: int
    """So much may be sent in one turn."""
    certificate: PeerCertificate | None
    sock: socket.socket

    def fileno(self) -> int:
        """Of the socket; the same one always."""

    @property
    def has_read(self) -> bool:
        """Whether `recv` has something though the socket may not."""

    def recv(self, size: int) -> bytes:
        """Up to so many bytes; empty: no more comes."""

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:
        """How much of it was taken; `more` comes at once."""

    def send_file(self, fileno: int, position: int, size: int) -> int:
        """The same of a part of a file; 0 at its end."""

    def refusal(self, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Why that is not taken from whoever is there, or None."""

    def shut_down(self) -> None:
        """No more is sent."""

    def close(self) -> None:
        """Give the socket back."""


class PlainTransport:
    """A socket as it is."""

    reads_wait = writes_wait = has_read = False
    sends_files = True
    slice_bytes = limits.SENDFILE_SLICE_BYTES
    certificate: PeerCertificate | None = None

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def fileno(self) -> int:
        """Of the socket."""
        return self.sock.fileno()

    def recv(self, size: int) -> bytes:
        """Up to so many bytes."""
        return self.sock.recv(size)

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:
        """How much of it was taken."""
        return self.sock.send(data, _MSG_MORE if more else 0)

    def send_file(self, fileno: int, position: int, size: int) -> int:
        """With sendfile(2)."""
        return os.sendfile(self.sock.fileno(), fileno, position, size)

    def refusal(self, request: Request, *, is_peer: bool) -> RemoteError | None:
        """There is nothing to look at."""
        return None

    def shut_down(self) -> None:
        """No more is sent."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give the socket back."""
        self.sock.close()


class _State(Enum):
    NEW = auto()  # nothing has come
    PLAIN = auto()  # no TLS has
    HANDSHAKE = auto()
    OPEN = auto()
    SHUT = auto()  # we send no more; what comes is not even decrypted


class Policy(Protocol):
    """What the settings make of who is there."""

    def context(self) -> ssl.SSLContext:
        """For one more connection."""

    def certificate_of(self, sock: ssl.SSLSocket) -> PeerCertificate | None:
        """Whose certificate came in the handshake; None: there was none."""

    def refusal(self, certificate: PeerCertificate | None, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Why that is not taken, or None."""


class TlsTransport:
    """See the module. The side that accepts; `give_way` closes the connection if there are too many handshakes."""

    slice_bytes = limits.TLS_SLICE_BYTES

    def __init__(self, sock: socket.socket, peer: str, policy: Policy, handshakes: Handshakes) -> None:
        """OSError: it has gone already."""
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
        self._begun_bytes = 0  # of a record that the socket has not taken all of
        self._ended: OSError | bool = False  # no more comes; it was not told yet
        # So that one or two bytes do not wake the loop again and again, which only looks at them.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _FIRST_BYTES)

    def fileno(self) -> int:
        """Of the socket."""
        return self.sock.fileno()

    @property
    def has_read(self) -> bool:
        """The rest of a record, or its end."""
        return bool(self._ended) or (self._state is _State.OPEN and self._tls is not None and self._tls.pending() > 0)

    # Reading

    def recv(self, size: int) -> bytes:
        """Up to so many bytes; the handshake goes on first, if it is not over."""
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
            self._state = _State.PLAIN  # fewer come only with the end behind them
            return
        # It takes the descriptor over, whatever becomes of it.
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
            self._ended = bool(missing and parts)  # the end is told when all before it has been
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
        """How much of it was taken: whole records."""
        self.writes_wait = False
        if self._state is _State.PLAIN:
            return self.sock.send(data)
        if self._state is not _State.OPEN:
            raise BlockingIOError
        assert self._tls is not None
        if len(data) < self._begun_bytes:  # of a file that was cut meanwhile
            raise ConnectionAbortedError(errno.ECONNABORTED, "a record of TLS was begun with bytes that are gone")
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
        except ssl.SSLError as error:  # its numbers are OpenSSL's, and no errno
            raise ConnectionAbortedError(errno.ECONNABORTED, str(error.reason or error)) from None
        self._begun_bytes = 0
        return taken

    def send_file(self, fileno: int, position: int, size: int) -> int:
        """With sendfile(2), which the kernel encrypts."""
        assert self.sends_files
        return os.sendfile(self.sock.fileno(), fileno, position, size)

    # Who is there, and the end

    def refusal(self, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Of whoever speaks no TLS all; else what the settings say."""
        if self._state is _State.PLAIN:
            text = "this broker speaks TLS: connect with tls=True, --tls-ca FILE or tls://HOST:PORT"
            return RemoteError(ErrorCode.TLS_REQUIRED, text)
        return self._policy.refusal(self.certificate, request, is_peer=is_peer)

    def shut_down(self) -> None:
        """No more is sent: close_notify, then the end of the socket's sending half."""
        self._say_end()
        self.sock.shutdown(socket.SHUT_WR)
        if self._state is _State.OPEN:
            self._state = _State.SHUT

    def _say_end(self) -> None:
        if self._state is _State.OPEN and not self._begun_bytes:
            assert self._tls is not None
            with contextlib.suppress(OSError, ValueError):  # whoever is there may have gone, or have more to say
                self._tls.unwrap()

    def close(self) -> None:
        """Give the socket back."""
        self._handshakes.end(self._too_many)
        self._say_end()
        self._ended = False
        self._state = _State.SHUT
        self.sock.close()


def is_encrypted_by_kernel(sock: socket.socket) -> bool:
    """Whether the kernel encrypts what is written into the socket: it says so itself."""
    try:
        info = sock.getsockopt(_SOL_TLS, _TLS_TX, _CRYPTO_INFO.size)
    except (OSError, AttributeError):
        return False
    if len(info) != _CRYPTO_INFO.size:
        return False
    version, cipher = _CRYPTO_INFO.unpack(info)
    return version in _VERSIONS and cipher != 0
