"""What an error of TLS means to whoever has to mend it.

Rules: the errors are those of Python's `ssl`, told apart by what they carry: who decides nothing about TLS need not
load it. What to do about it is in the words of the side that dials: a setting of a broker, or an option of a client.
"""

from __future__ import annotations

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
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "or nothing else that both sides know",
}
_NO_COMMON = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW")


class Words(NamedTuple):
    """How the side that dials says which files it uses."""

    authority: str
    certificate: str
    name: str  # how to expect another name
    plain: str  # how to speak no TLS


def tls_mistake(error: BaseException | None, words: Words) -> str | None:
    """What went wrong, and what to do; None: it is no error of TLS."""
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
        return "its certificate has expired; whoever runs it has to put a new one in its place"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; is the clock of this machine right?"
    if code in _WRONG_NAME:
        text = f"its certificate is for another name ({message})"
        return f"{text}; dial it by one that it has, or expect that ({words.name})"
    if code == _WRONG_PURPOSE:
        return "its certificate is not for servers (extended key usage); whoever runs it needs another one"
    return f"its certificate was not accepted: {message}"
