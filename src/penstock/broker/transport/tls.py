"""TLS of a running broker: loaded certificates, their reload, permitted peers, and warnings before expiry.

Rules: the files are checked every TLS_LOOK_MS, and reloaded if one has changed, or on SIGHUP; on a disk thread. New
connections use the new certificates; existing ones keep theirs. An unusable pair is logged and changes nothing; nor
does a certificate that has expired, or is not valid yet, while the current one is valid: it waits until it is the
better one, or is replaced. From 14 days before expiry the log has a daily warning.

| peer                 | request        | needs                                                                |
|----------------------|----------------|----------------------------------------------------------------------|
| another broker       | peer hello     | a certificate of `tls_ca`, with one of `tls_peer_names`              |
| not yet identified   | hello, log in  | a certificate of `tls_ca` or `tls_client_ca`                         |
| a client             | anything       | one of `tls_client_ca`, if `tls_client_auth` is `required`           |

A certificate belongs to the nearest authority above it that is in one of the two files.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.units import utc_text
from penstock.broker.config.tls_settings import REQUIRED, BrokerTls, LoadedTls
from penstock.broker.security.certificates import CertificateFile
from penstock.broker.transport.transport import PeerCertificate
from penstock.messages import AuthenticateRequest, HelloRequest, PeerHelloRequest, Request

_log = logging.getLogger("penstock.tls")

_TLS_EXPIRY_TOLD_MS = 14 * 86_400_000  # before a certificate expires, the log begins to warn
_TLS_EXPIRY_TOLD_AGAIN_MS = 86_400_000
InThread = Callable[[Callable[[], None], Callable[[Exception | None], None]], None]
"""Runs the first callable on a disk thread, then calls the second on the loop."""

_Signature = tuple[tuple[int, int, int] | None, ...]


class ServerTls:
    """The `TlsPolicy` of transports. Raise OperationalError if the files cannot be used; blocking."""

    def __init__(self, settings: BrokerTls) -> None:
        self._settings = settings
        self._signature = _signature(settings.files)
        self._loaded = settings.load()
        self._peer_names = frozenset(name.lower() for name in settings.peer_names)
        self._next_look_us = 0
        self._is_looking = self._is_asked = False
        self._waiting: LoadedTls | None = None  # loaded, but worse than the current one
        self._told_us: dict[Path, int] = {}  # last warning about the expiry of that file

    @property
    def expires_us(self) -> int:
        """Expiry of this broker's certificate."""
        return self._loaded.own.end_us

    @property
    def held(self) -> tuple[CertificateFile, ...]:
        """Certificates in use."""
        return self._loaded.held

    # Connections

    def context(self) -> ssl.SSLContext:
        """Return the context for one more incoming connection."""
        return self._loaded.server

    def http_context(self) -> ssl.SSLContext:
        """Return the context for one more connection to the HTTP port."""
        return self._loaded.http

    def dialling(self, host: str) -> dict[str, Any]:
        """Return the extra arguments of asyncio's `create_connection` for a broker at `host`. Raise
        OperationalError.
        """
        context = self._loaded.dialling
        if context is None:
            raise OperationalError("no broker is trusted without tls_ca, the authority of their certificates; set it")
        return {"ssl": context, "server_hostname": host}

    def certificate_of(self, sock: ssl.SSLSocket) -> PeerCertificate | None:
        """Return the peer's certificate from the handshake; None if there was none."""
        said: dict[str, Any] | None = sock.getpeercert()
        if not said:
            return None
        subject = [pair for parts in said.get("subject", ()) for pair in parts]
        common = next((value for name, value in subject if name == "commonName"), None)
        # An authority of one file may be below one of the other: the nearest decides.
        clients, brokers = self._loaded.client_anchors, self._loaded.broker_anchors
        nearest = next((one for one in _verified_chain(sock) if one in clients or one in brokers), None)
        return PeerCertificate(
            common or ",".join(f"{name}={value}" for name, value in subject),
            tuple(value for kind, value in said.get("subjectAltName", ()) if kind in ("DNS", "IP Address")),
            is_client=nearest in clients,
            is_broker=nearest in brokers,
        )

    def refusal(self, certificate: PeerCertificate | None, request: Request, *, is_peer: bool) -> RemoteError | None:
        """Return why the request is not accepted with this certificate, or None."""
        if isinstance(request, PeerHelloRequest):
            text = self._no_broker(certificate)
        elif is_peer or self._settings.wanted_of_clients != REQUIRED or self._is_client(certificate, request):
            return None
        else:
            text = "this broker asks clients for a certificate: "
            text += (
                "give one (tls cert= and key=, --tls-cert and --tls-key)"
                if certificate is None
                else (f"that of {certificate.subject!r} is not of the authority that it trusts for clients")
            )
        return None if text is None else RemoteError(ErrorCode.CERTIFICATE_REFUSED, text)

    @staticmethod
    def _is_client(certificate: PeerCertificate | None, request: Request) -> bool:
        if certificate is None:
            return False
        # A broker sends hello, proves that it knows the cluster secret, and only then identifies itself.
        return certificate.is_client or (
            certificate.is_broker and isinstance(request, HelloRequest | AuthenticateRequest)
        )

    def _no_broker(self, certificate: PeerCertificate | None) -> str | None:
        if self._settings.ca_file is None:
            return "this broker accepts no other brokers: it has no tls_ca, the authority of their certificates"
        if certificate is None:
            return "a broker needs a certificate here, and sent none; set tls_cert and tls_key"
        if not certificate.is_broker:
            return f"the certificate of {certificate.subject!r} is not of the authority of brokers (tls_ca)"
        if self._peer_names and not self._peer_names & {name.lower() for name in certificate.names}:
            names = ", ".join(certificate.names) or "none"
            return f"the certificate of {certificate.subject!r} has none of the names in tls_peer_names, but {names}"
        return None

    # Files that change

    def sweep(self, wall_us: int, elapsed_us: int, in_thread: InThread) -> None:
        """Check the files when due; call about once a second."""
        if not self._is_looking and (self._is_asked or elapsed_us >= self._next_look_us):
            self._next_look_us = elapsed_us + limits.TLS_LOOK_MS * 1_000
            self._look(wall_us, in_thread)
            if self._waiting is not None and not _is_worse(self._waiting, self._loaded, wall_us):
                self._use(self._waiting)
            self._tell_ends(wall_us)

    def reload(self, wall_us: int, in_thread: InThread) -> None:
        """Read the files now, changed or not."""
        self._is_asked = True
        if not self._is_looking:
            self._look(wall_us, in_thread)

    def _look(self, wall_us: int, in_thread: InThread) -> None:
        is_asked, self._is_asked = self._is_asked, False
        self._is_looking = True
        before = self._signature
        found: list[tuple[_Signature, LoadedTls | OperationalError]] = []

        def look() -> None:
            signature = _signature(self._settings.files)
            if signature == before and not is_asked:
                return
            try:
                found.append((signature, self._settings.load()))
            except OperationalError as error:
                found.append((signature, error))

        def done(error: Exception | None) -> None:
            self._is_looking = False
            if error is not None:
                raise error
            for signature, loaded in found:
                self._signature = signature
                self._take(loaded, wall_us)

        in_thread(look, done)

    def _take(self, loaded: LoadedTls | OperationalError, wall_us: int) -> None:
        self._waiting = None
        if isinstance(loaded, OperationalError):
            _log.error("%s; what was read before stays in use", loaded)
        elif _is_worse(loaded, self._loaded, wall_us):
            self._waiting = loaded
            has_ended = loaded.own.end_us <= wall_us
            said = (
                f"ended on {utc_text(loaded.own.end_us)}"
                if has_ended
                else f"begins on {utc_text(loaded.own.begin_us)} only"
            )
            text = "the new certificate in %s %s: what was read before stays in use, until %s%s"
            then = "; put another one in its place" if has_ended else ", or until then"
            _log.warning(text, self._settings.cert_file, said, utc_text(self._loaded.own.end_us), then)
        else:
            self._use(loaded)

    def _use(self, loaded: LoadedTls) -> None:
        self._loaded, self._waiting = loaded, None
        self._told_us.clear()
        _log.info("new certificates are in use; this broker's own ends on %s", utc_text(loaded.own.end_us))

    def _tell_ends(self, wall_us: int) -> None:
        for held in self._loaded.held:
            file, validity, has_good = held.file, held.validity, held.has_good(wall_us)
            told_us = self._told_us.get(file)
            has_begun = validity.begin_us <= wall_us or has_good
            if has_begun and validity.end_us - wall_us > _TLS_EXPIRY_TOLD_MS * 1_000:
                continue
            if told_us is not None and wall_us - told_us < _TLS_EXPIRY_TOLD_AGAIN_MS * 1_000:
                continue
            self._told_us[file] = wall_us
            if not has_begun:
                text = "a certificate in %s begins on %s only: until then it is refused; is the clock right?"
                _log.error(text, file, utc_text(validity.begin_us))
                continue
            has_ended = validity.end_us <= wall_us
            if has_ended and has_good:
                text = "an authority in %s ended on %s; another one there is good: take out the old one, if no "
                _log.warning(text + "certificate is of it any more", file, utc_text(validity.end_us))
                continue
            level, verb = (logging.ERROR, "ended") if has_ended else (logging.WARNING, "ends")
            _log.log(
                level, "a certificate in %s %s on %s: put a new one in its place", file, verb, utc_text(validity.end_us)
            )


def _is_worse(new: LoadedTls, used: LoadedTls, wall_us: int) -> bool:
    """True if the new certificate is not valid now, but the current one is."""
    is_new_good, is_used_good = (one.own.begin_us <= wall_us < one.own.end_us for one in (new, used))
    return is_used_good and not is_new_good


def _signature(files: tuple[Path, ...]) -> _Signature:
    """Return values that change when a file is written or replaced."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            state = os.stat(file)
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _verified_chain(sock: ssl.SSLSocket) -> list[bytes]:
    """Return the certificates from the peer's up to the trusted one, as DER."""
    if (public := getattr(sock, "get_verified_chain", None)) is not None:  # since Python 3.13
        return list(public())
    private = sock._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # noqa: SLF001 (the only way before)
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in private or ()]
