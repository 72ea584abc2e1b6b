"""What a file of certificates says, without a library for it: each certificate, when it counts, and whose it is.

Rules: OpenSSL has checked the files before; what cannot be read here is said in a ValueError. Of a certificate (X.509,
DER) only names and validity are looked at:

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

# OpenSSL takes the old label, and that of `openssl x509 -trustout`, which has more behind the certificate.
_PEM = re.compile(r"-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----\s(.+?)-----END \1-----", re.DOTALL)
_JOINED = re.compile(r"-----END [A-Z0-9 ]+-----[ \t]*-----BEGIN ")  # files that were put together, without line ends
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18  # tags


def certificates_in(file: Path) -> tuple[bytes, ...]:
    """The certificates of a PEM file, each as DER. OSError, ValueError: it cannot be read; blocking."""
    with file.open("rb") as opened:
        content = opened.read(limits.TLS_FILE_BYTES_MAX + 1)
    if len(content) > limits.TLS_FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {limits.TLS_FILE_BYTES_MAX} bytes")
    text = content.decode("ascii", "replace")
    if _JOINED.search(text) is not None:
        raise ValueError("a line end is missing between two of its parts: END and BEGIN stand on one line")
    return tuple(_alone(base64.b64decode("".join(found.split()))) for _, found in _PEM.findall(text))


def _alone(certificate: bytes) -> bytes:
    """Without what a trusted one has behind it."""
    try:
        return certificate[: _element(certificate, 0)[2]]
    except IndexError:
        raise ValueError("it breaks off in a certificate") from None


class Validity(NamedTuple):
    """When a certificate counts, both ends included; in µs since 1970."""

    begin_us: int
    end_us: int


class Held(NamedTuple):
    """What a file of certificates comes to."""

    setting: str  # that names it
    file: Path
    validities: tuple[Validity, ...]  # of each in it, of which there is one at least
    is_chain: bool = False  # every one is needed; else authorities, each of which is trusted by itself

    @property
    def validity(self) -> Validity:
        """When all of them count."""
        return common(self.validities)

    @property
    def last_end_us(self) -> int:
        """When none is left that counts."""
        return self.validity.end_us if self.is_chain else max(one.end_us for one in self.validities)

    def has_good(self, now_us: int) -> bool:
        """Whether some certificate can be checked with it now, though another one in it has ended, or begins later."""
        good = [one.begin_us <= now_us < one.end_us for one in self.validities]
        return all(good) if self.is_chain else any(good)


def common(validities: Iterable[Validity]) -> Validity:
    """When all of these count, of which there is one at least."""
    begins_us, ends_us = zip(*validities, strict=True)
    return Validity(max(begins_us), min(ends_us))


def validity_of(certificate: bytes) -> Validity:
    """When a certificate (DER) counts. ValueError: it is none."""
    try:
        _, validity, _ = _element(certificate, _issuer_and_end(certificate)[1])
        begin_us, position = _time(certificate, validity, "begin")
        end_us, _ = _time(certificate, position, "end")
    except IndexError:
        raise ValueError("it breaks off in a certificate") from None
    return Validity(begin_us, end_us)


def _time(certificate: bytes, position: int, which: str) -> tuple[int, int]:
    """The time that is there, and where the next element is."""
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
    """Of which authority a certificate (DER) is, and whose it is: names as they are encoded. ValueError: it is none."""
    try:
        issuer, position = _issuer_and_end(certificate)
        _, _, position = _element(certificate, position)
        _, start, end = _element(certificate, position)
    except IndexError:
        raise ValueError("it breaks off in a certificate") from None
    return issuer, certificate[start:end]


def _issuer_and_end(certificate: bytes) -> tuple[bytes, int]:
    """The issuer, and where the validity begins. IndexError."""
    _, whole, _ = _element(certificate, 0)
    _, inner, _ = _element(certificate, whole)
    tag, _, after = _element(certificate, inner)
    position = after if tag == _VERSION else inner
    start = end = position
    for _ in ("serial number", "signature", "issuer"):
        _, start, end = _element(certificate, end)
    return certificate[start:end], end


def _element(data: bytes, position: int) -> tuple[int, int, int]:
    """The tag of what begins there, where its content begins, and where that ends."""
    tag, length, start = data[position], data[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[start : start + count], "big")
        start += count
    if start + length > len(data):
        raise IndexError
    return tag, start, start + length
