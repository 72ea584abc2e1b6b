"""Issues certificates from private authorities: for trying out TLS, and for small installations.

Rules: nothing is ever overwritten: if one of the files exists, none is written. Keys are readable by their owner only.
Brokers and clients have separate authorities, so that no client can impersonate a broker.

    ca.pem          authority of brokers             tls_ca of brokers, --tls-ca of clients
    ca.key          its key: for further certificates; keep it elsewhere
    broker.pem      for the named hosts              tls_cert
    broker.key                                       tls_key
    client-ca.pem   authority of clients             tls_client_ca
    client-ca.key   its key
    client.pem      of one client                    --tls-cert
    client.key                                       --tls-key
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.extras import how_to_install

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_SKEW = timedelta(minutes=5)  # tolerated clock skew of the verifying side


def written(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files. Raise ValueError if one of them exists; then nothing is written."""
    if taken := [name for name in files if (folder / name).exists()]:
        raise ValueError(f"{folder} has {', '.join(taken)} already, and nothing is overwritten; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        mode = 0o600 if name.endswith(".key") else 0o644
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
            opened.write(content)


def issued(hosts: Sequence[str], client: str, days: int) -> dict[str, bytes]:
    """Return the files' contents by name. Raise ImportError if cryptography is not installed."""
    try:
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError:
        raise ImportError(f"certificates are made with the package cryptography: {how_to_install('tls')}") from None
    brokers, clients = _Authority("Penstock brokers", days), _Authority("Penstock clients", days)
    server, other = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    broker = brokers.issue(hosts[0], hosts, (server, other), days)  # a broker is also a client of other brokers
    of_client = clients.issue(client, (), (other,), days)
    pairs = {"ca": brokers.pair, "broker": broker, "client-ca": clients.pair, "client": of_client}
    return {
        f"{name}{end}": one for name, pair in pairs.items() for end, one in zip((".pem", ".key"), pair, strict=True)
    }


class _Authority:
    """Issues certificates; `pair` is its own certificate and key."""

    def __init__(self, name: str, days: int) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        basic = x509.BasicConstraints(ca=True, path_length=0)
        self.pair = self._signed(self._name, self._key, [(basic, True), (_usage(is_authority=True), True)], days)

    def issue(
        self, name: str, hosts: Sequence[str], usages: Sequence[x509.ObjectIdentifier], days: int
    ) -> tuple[bytes, bytes]:
        """Return a certificate and its key, as PEM."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(is_authority=False), True),
            (x509.ExtendedKeyUsage(usages), False),
        ]
        if hosts:
            extensions.append((x509.SubjectAlternativeName([_host(one) for one in hosts]), False))
        return self._signed(_named(name), ec.generate_private_key(ec.SECP256R1()), extensions, days)

    def _signed(
        self,
        subject: x509.Name,
        key: EllipticCurvePrivateKey,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
        days: int,
    ) -> tuple[bytes, bytes]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        pem = serialization.Encoding.PEM
        plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(pem), plain


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
