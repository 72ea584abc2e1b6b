"""Explains TLS errors to the operator.

Rules: errors of Python's `ssl` are recognised by their attributes, so that this module need not load `ssl`. The advice
uses the terms of the connecting side: a setting of a broker, or an option of a client.
"""

from __future__ import annotations

import re
from os import PathLike
from typing import NamedTuple

_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21, 27)  # X509_V_ERR_… of OpenSSL
_NOT_YET_VALID, _EXPIRED, _WRONG_PURPOSE = 9, 10, 26
_WRONG_NAME = (62, 64)
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
)
_OURS_REFUSED = {
    "TLSV1_ALERT_UNKNOWN_CA": "its authority is not trusted there",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it was revoked",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not for this purpose",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is bad",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it is not accepted",
    "TLSV1_ALERT_ACCESS_DENIED": "it is not accepted",
    "TLSV1_ALERT_DECRYPT_ERROR": "its signature is wrong",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "there is none",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it may be missing, or the two sides have no algorithm in common",
}
_NO_COMMON = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW")


_PAIR_BYTES_MAX = 1 << 20  # of each file; the rest is not read
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_WHOLE_KEY = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.+?-----END \1PRIVATE KEY-----", re.DOTALL)


class Words(NamedTuple):
    """Advice in terms of the connecting side's settings."""

    authority: str
    certificate: str
    name: str  # how to expect another name
    plain: str  # how to use no TLS


def tls_mistake(error: BaseException | None, words: Words) -> str | None:
    """Return what went wrong and what to do; None: it is no TLS error."""
    if error is None or not hasattr(error, "library") or not hasattr(error, "reason"):
        return None
    if (code := getattr(error, "verify_code", None)) is not None:
        return _unverified(code, str(getattr(error, "verify_message", "") or error).rstrip("."), words)
    reason = str(getattr(error, "reason", None) or "")
    if reason in _NO_TLS:
        return f"what answers there speaks no TLS; {words.plain}"
    if reason in _OURS_REFUSED:
        return f"it refuses our certificate: {_OURS_REFUSED[reason]}; give another one ({words.certificate})"
    if reason in _NO_COMMON:
        return "there is no version of TLS that both sides speak; 1.2 is the least"
    return f"TLS failed: {reason.replace('_', ' ').lower() or error}"


def _unverified(code: int, message: str, words: Words) -> str:
    if code in _UNKNOWN_AUTHORITY:
        text = f"its certificate is of no authority that is trusted here ({message})"
        return f"{text}; name the one it is of ({words.authority})"
    if code == _EXPIRED:
        return "its certificate has expired: its operator must replace it"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; is the clock of this machine right?"
    if code in _WRONG_NAME:
        text = f"its certificate is for another name ({message})"
        return f"{text}; dial it by one that it has, or expect that ({words.name})"
    if code == _WRONG_PURPOSE:
        return "its certificate is not for servers (extended key usage): its operator must replace it"
    return f"its certificate was not accepted: {message}"


def pair_mistake(error: Exception, cert: str | PathLike[str], key: str | PathLike[str] | None, option: str) -> str:
    """Return why a certificate and its key could not be loaded, and from which file; `option` names a key. Blocking."""
    files = f"{cert}" if key is None else f"{cert} with {key}"
    return f"cannot use {files} for TLS: {_of_pair(error, cert, key, option)}"


def _of_pair(error: Exception, cert: str | PathLike[str], key: str | PathLike[str] | None, option: str) -> str:
    held: list[bytes] = []
    for file in (cert, cert if key is None else key):
        try:
            with open(file, "rb") as opened:
                held.append(opened.read(_PAIR_BYTES_MAX))
        except OSError as unread:
            return f"{file}: {unread.strerror or unread}" if key is not None else str(unread.strerror or unread)
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    in_cert, in_key = held
    where = cert if key is None else key
    if in_cert.count(b"-----BEGIN CERTIFICATE-----") != in_cert.count(b"-----END CERTIFICATE-----"):
        return f"{cert} breaks off in a certificate"
    if b"-----BEGIN CERTIFICATE-----" not in in_cert:
        return f"{cert} holds no certificate (PEM)"
    if _KEY.search(in_key) is None:
        alone = f"it holds no private key: name that of the certificate ({option})"
        return alone if key is None else f"{key} holds no private key (PEM)"
    if _WHOLE_KEY.search(in_key) is None:
        return f"{where} breaks off in the private key"
    if b"ENCRYPTED" in in_key:
        return "the key has a passphrase; store it without one"
    if getattr(error, "reason", None) is None and hasattr(error, "reason"):
        return f"the private key in {where} is damaged"
    return str(getattr(error, "strerror", None) or error)
