"""Reads certificate files without a library: each certificate's validity, issuer and subject.

Rules: OpenSSL has checked the files before; whatever cannot be read raises a ValueError. Of a certificate (X.509, DER)
only names and validity are parsed:

    Certificate → TBSCertificate → [version], serial number, signature, issuer, validity, subject
    validity → not before, not after
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from penstock.base import limits

_TLS_FILE_BYTES_MAX = 4 * limits.MIB  # size of certificate files: a system's trusted ones are 250 KiB
# OpenSSL accepts the old label, and that of `openssl x509 -trustout`, which appends data to the certificate.
_PEM = re.compile(r"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----\s(.+?)-----END \1-----", re.DOTALL)
_JOINED = re.compile(r"-----END [A-Z0-9 ]+-----[ \t]*-----BEGIN ")  # concatenated files without a line end
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18  # tags


def certificates_in(file: Path) -> tuple[bytes, ...]:
    """Return the certificates of a PEM file, each as DER (blocking). Raise OSError or ValueError if it cannot
    be read.
    """
    with file.open("rb") as opened:
        content = opened.read(_TLS_FILE_BYTES_MAX + 1)
    if len(content) > _TLS_FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {_TLS_FILE_BYTES_MAX} bytes")
    text = content.decode("ascii", "replace")
    if _JOINED.search(text) is not None:
        raise ValueError("a line end is missing between two of its parts: END and BEGIN are on one line")
    return tuple(_alone(base64.b64decode("".join(found.split()))) for _, found in _PEM.findall(text))


def _alone(certificate: bytes) -> bytes:
    """Return the certificate without the data appended to a trusted one."""
    try:
        return certificate[: _element(certificate, 0)[2]]
    except IndexError:
        raise ValueError("it breaks off in a certificate") from None


class Validity(NamedTuple):
    """Validity of a certificate, both ends included; in µs since 1970."""

    begin_us: int
    end_us: int


class CertificateFile(NamedTuple):
    """Certificates in one file."""

    setting: str  # the setting that names the file
    file: Path
    validities: tuple[Validity, ...]  # one for each certificate, at least one
    is_chain: bool = False  # True: a chain, all are needed; False: independently trusted authorities

    @property
    def validity(self) -> Validity:
        """Intersection of all validities."""
        return common(self.validities)

    @property
    def last_end_us(self) -> int:
        """Time at which no valid certificate is left."""
        return self.validity.end_us if self.is_chain else max(one.end_us for one in self.validities)

    def has_good(self, now_us: int) -> bool:
        """True if the file is usable now: a chain as a whole, or at least one authority."""
        good = [one.begin_us <= now_us < one.end_us for one in self.validities]
        return all(good) if self.is_chain else any(good)


def common(validities: Iterable[Validity]) -> Validity:
    """Return the intersection of at least one validity."""
    begins_us, ends_us = zip(*validities, strict=True)
    return Validity(max(begins_us), min(ends_us))


def validity_of(certificate: bytes) -> Validity:
    """Return the validity of a certificate (DER); raise ValueError if it is invalid."""
    try:
        _, validity, _ = _element(certificate, _issuer_and_end(certificate)[1])
        begin_us, position = _time(certificate, validity, "begin")
        end_us, _ = _time(certificate, position, "end")
    except IndexError:
        raise ValueError("it breaks off in a certificate") from None
    return Validity(begin_us, end_us)


def _time(certificate: bytes, position: int, which: str) -> tuple[int, int]:
    """Return the time at `position`, and the position after it."""
    tag, start, end = _element(certificate, position)
    text = certificate[start:end].decode("ascii", "replace")
    if tag == _UTC_TIME:
        text = ("20" if text[:2] < "50" else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a certificate in it has no {which}")
    try:
        moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"a certificate in it {which}s at {text!r}, which is no time") from None
    return int(moment.timestamp()) * 1_000_000, end


def issuer_and_subject(certificate: bytes) -> tuple[bytes, bytes]:
    """Return encoded issuer and subject of a certificate (DER); raise ValueError if it is invalid."""
    try:
        issuer, position = _issuer_and_end(certificate)
        _, _, position = _element(certificate, position)
        _, start, end = _element(certificate, position)
    except IndexError:
        raise ValueError("it breaks off in a certificate") from None
    return issuer, certificate[start:end]


def _issuer_and_end(certificate: bytes) -> tuple[bytes, int]:
    """Return the issuer, and the position of the validity. Raise IndexError."""
    _, whole, _ = _element(certificate, 0)
    _, inner, _ = _element(certificate, whole)
    tag, _, after = _element(certificate, inner)
    position = after if tag == _VERSION else inner
    start = end = position
    for _ in ("serial number", "signature", "issuer"):
        _, start, end = _element(certificate, end)
    return certificate[start:end], end


def _element(data: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag of the element at `position`, and start and end of its content."""
    tag, length, start = data[position], data[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[start : start + count], "big")
        start += count
    if start + length > len(data):
        raise IndexError
    return tag, start, start + length
