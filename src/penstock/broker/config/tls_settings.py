"""Certificate settings of a broker: its own certificate, the authorities of others, and how they are loaded.

Rules: TLS 1.2 at least, no renegotiation, no tickets, no compression. A certificate is requested if clients or brokers
may have one, and verified if there is one; if a required one is missing, that is found with the first request, so that
the peer gets an error message. The file against which a certificate verifies decides between client and broker: OpenSSL
has a single set of authorities.

| setting           | without it                                                                                |
|-------------------|-------------------------------------------------------------------------------------------|
| `tls_cert`        | no TLS at all                                                                             |
| `tls_ca`          | no other broker is accepted, and none is dialled                                          |
| `tls_client_ca`   | no certificates are requested from clients                                                |
| `tls_client_auth` | `required` if there is a `tls_client_ca`, else `off`                                      |
| `tls_peer_names`  | any certificate that verifies against `tls_ca` is a broker's                              |
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.base.errors import OperationalError
from penstock.base.tls_errors import pair_mistake
from penstock.broker.config.settings import CLIENT_AUTH
from penstock.broker.security.certificates import (
    CertificateFile,
    Validity,
    certificates_in,
    common,
    issuer_and_subject,
    validity_of,
)

OFF, OPTIONAL, REQUIRED = CLIENT_AUTH
# Other ciphers of TLS 1.2 lack forward secrecy, or have padding oracles. (Those of 1.3 are all fit.)
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
# From OpenSSL 3, named by Python since 3.12: the kernel encrypts if it can.
_ENABLE_KTLS = getattr(ssl, "OP_ENABLE_KTLS", 1 << 3 if ssl.OPENSSL_VERSION_INFO >= (3,) else 0)


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """The contexts and certificates loaded from the files."""

    server: ssl.SSLContext
    http: ssl.SSLContext  # requests no client certificates
    dialling: ssl.SSLContext | None  # to other brokers
    client_anchors: frozenset[bytes]  # the certificates of `tls_client_ca`
    broker_anchors: frozenset[bytes]  # the certificates of `tls_ca`
    own: Validity  # of our own certificate chain
    held: tuple[CertificateFile, ...]


@dataclass(frozen=True, slots=True)
class BrokerTls:
    """The settings `tls_…`; falsy without a certificate."""

    cert_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    peer_names: tuple[str, ...] = ()
    ignore_hosts: bool = False
    client_ca_file: Path | None = None
    client_auth: str | None = None

    def __bool__(self) -> bool:
        return self.cert_file is not None

    @property
    def wanted_of_clients(self) -> str:
        """`off`, `optional` or `required`."""
        return self.client_auth or (OFF if self.client_ca_file is None else REQUIRED)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files to read."""
        named = (self.cert_file, self.key_file, self.ca_file, self.client_ca_file)
        return tuple(dict.fromkeys(file for file in named if file is not None))

    def mistakes(self) -> list[str]:
        """Return everything that cannot work, files included; each text names its setting."""
        if self.cert_file is None:
            if self.files or self.client_auth not in (None, OFF) or self.peer_names:
                return ["there is no TLS without a certificate; set tls_cert and tls_key"]
            return []
        if self.wanted_of_clients != OFF and self.client_ca_file is None:
            return [f"tls_client_auth = {self.client_auth} needs tls_client_ca, which clients are checked against"]
        if self.peer_names and self.ca_file is None:
            return ["tls_peer_names needs tls_ca, which brokers are checked against"]
        if self.peer_names and self.ignore_hosts:
            return [
                "with tls_ignore_hosts a broker may show any certificate of tls_ca, whatever tls_peer_names "
                "says; set one of the two"
            ]
        try:
            self.load()
        except OperationalError as error:
            return [str(error)]
        return []

    def load(self) -> LoadedTls:
        """Read all files (blocking). Raise OperationalError with the unusable file or combination."""
        assert self.cert_file is not None
        client_ca_file = None if self.wanted_of_clients == OFF else self.client_ca_file
        own = _read(self.cert_file, certificates_in)
        anchors = {file: _read(file, _authorities_in) for file in (self.ca_file, client_ca_file) if file is not None}
        held = {"tls_cert": (self.cert_file, own)}
        for setting, file in (("tls_ca", self.ca_file), ("tls_client_ca", client_ca_file)):
            if file is not None:
                held[setting] = file, anchors[file]
        server, http = self._server_context(), self._server_context()
        server.options |= _ENABLE_KTLS
        for file in anchors:
            server.load_verify_locations(file)
            server.verify_mode = ssl.CERT_OPTIONAL
        clients = frozenset(() if client_ca_file is None else anchors[client_ca_file])
        brokers = frozenset(() if self.ca_file is None else anchors[self.ca_file])
        if not self.peer_names and (mistake := _mistake_of(clients, brokers)) is not None:
            raise OperationalError(mistake)
        dialling = None
        if self.ca_file is not None:
            dialling = self._context(ssl.PROTOCOL_TLS_CLIENT)
            dialling.check_hostname = not self.ignore_hosts
            dialling.load_verify_locations(self.ca_file)
        return LoadedTls(
            server,
            http,
            dialling,
            clients,
            brokers,
            common(map(validity_of, own)),
            tuple(
                CertificateFile(setting, file, tuple(map(validity_of, those)), is_chain=setting == "tls_cert")
                for setting, (file, those) in held.items()
            ),
        )

    def _server_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_IGNORE_UNEXPECTED_EOF
        context.num_tickets = 0
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        assert self.cert_file is not None
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        try:
            # Without this a key with a passphrase would prompt at the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            text = pair_mistake(error, self.cert_file, self.key_file, "tls_key, --tls-key")
            raise OperationalError(text) from None
        return context


def _mistake_of(clients: frozenset[bytes], brokers: frozenset[bytes]) -> str | None:
    """Return why these authorities do not distinguish clients from brokers, or None."""
    advice = "so any client could say that it is a broker; use two, or name the brokers with tls_peer_names"
    if clients & brokers:
        return f"tls_ca and tls_client_ca have an authority in common, {advice}"
    above = {one: names for one in clients | brokers if (names := issuer_and_subject(one))[0] != names[1]}
    subjects = {one: issuer_and_subject(one)[1] for one in clients | brokers}
    for first in above:
        seen, issuers = {first}, {above[first][0]}
        while found := {one for one in subjects if one not in seen and subjects[one] in issuers}:
            if any((one in clients) != (first in clients) for one in found):
                return f"an authority in one of tls_ca and tls_client_ca is below one in the other, {advice}"
            seen |= found
            issuers |= {above[one][0] for one in found if one in above}
    return None


def _authorities_in(file: Path) -> tuple[bytes, ...]:
    found = certificates_in(file)
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    return found


def _read(file: Path, reader: Callable[[Path], tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Return the certificates of `file`, at least one, each readable."""
    try:
        found = reader(file)
        for certificate in found:
            validity_of(certificate)
            issuer_and_subject(certificate)
    except (OSError, ValueError) as error:
        raise OperationalError(f"cannot use {file} for TLS: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise OperationalError(f"cannot use {file} for TLS: there is no certificate (PEM) in it")
    return found
