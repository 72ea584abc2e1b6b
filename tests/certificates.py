"""Certificate authorities for tests, and the certificates that they issue, as PEM files in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL = ("127.0.0.1", "localhost")
_DAY = timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates. Its own, `ca`, is issued by the authority `above`, or self-signed.

    All days count from `now`, which is read once, so that a test can compute exact times from it.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "ca",
        above: Authority | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.now = (now or datetime.now(UTC)).replace(microsecond=0)  # certificates have whole seconds
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")])
        self.ca = folder / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        issuer = self if above is None else above
        self.ca.write_bytes(_pem(issuer._signed(self._name, self._key, [(basic, True)], days=365)))

    def own(self, *, days: float, begin_days: float = -365) -> bytes:
        """Return another certificate of the authority itself, for the same name and key, as PEM."""
        basic = x509.BasicConstraints(ca=True, path_length=None)
        return _pem(self._signed(self._name, self._key, [(basic, True)], days=days, begin_days=begin_days))

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = LOCAL,
        *,
        days: float = 30,
        begin_days: float = -365,
        usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    ) -> Pair:
        """Issue a pair as `NAME.pem` and `NAME.key`, replacing existing files; it is valid from `begin_days` on."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_name_of(host) for host in hosts]
        extensions: list[tuple[x509.ExtensionType, bool]] = [(x509.ExtendedKeyUsage(usages), False)]
        if names:
            extensions.append((x509.SubjectAlternativeName(names), False))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        _replace(pair.key, _key_pem(key))
        _replace(pair.cert, _pem(self._signed(subject, key, extensions, days=days, begin_days=begin_days)))
        return pair

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
        *,
        days: float,
        begin_days: float = -365,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now + begin_days * _DAY)
            .not_valid_after(self.now + days * _DAY)
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256())


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _replace(file: Path, content: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, file)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())
