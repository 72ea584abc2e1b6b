"""Checks of expiry: brokers' certificates and users' credentials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.base.units import utc_text
from penstock.doctor.asking import Asked
from penstock.doctor.findings import Finding, bounded, fail, ok, warn
from penstock.messages import CertificateInfo, ListUsersResponse, StatusResponse, UserInfo

SOON_US = 30 * 86_400_000_000


def judge_certificates(asked: Sequence[Asked], now_us: int) -> Iterator[Finding]:
    """Check the certificates of all brokers asked; yields nothing without TLS."""
    check = "certificates"
    held = [(one.broker.broker_id, each) for one in asked if one.status is not None for each in _held(one.status)]

    def wrong() -> Iterator[Finding]:
        for broker_id, one in held:
            if one.expires_us - now_us > SOON_US:
                continue
            if one.expires_us <= now_us < (one.last_expires_us or 0):
                text = f"an authority in that of broker {broker_id} ({one.setting}) ended on {utc_text(one.expires_us)}"
                until = utc_text(one.last_expires_us or 0)
                advice = "once no certificate is of it any more, take it out of the file: docs/how-to/tls.md"
                yield warn(check, f"{text}; with the others of the file certificates are checked until {until}", advice)
                continue
            verb, bad = ("ended", fail) if one.expires_us <= now_us else ("ends", warn)
            text = f"that of broker {broker_id} ({one.setting}) {verb} on {utc_text(one.expires_us)}"
            yield bad(check, text, "put a new one in its place: docs/how-to/tls.md, no restart is needed")

    if held:
        first = min(one.expires_us for _, one in held)
        yield from bounded(wrong(), ok(check, f"all are good until {utc_text(first)}"))


def _held(status: StatusResponse) -> tuple[CertificateInfo, ...]:
    if not status.certificates and status.tls_expires_us is not None:  # from an older version
        return (CertificateInfo(setting="tls_cert", expires_us=status.tls_expires_us),)
    return status.certificates


def judge_credentials(told: ListUsersResponse, now_us: int) -> Iterator[Finding]:
    """Check passwords, tokens and nkeys of the listed users; yields nothing if authentication is off."""
    if not told.is_guarded:
        return
    ends_us = [one.expires_us for user in told.users for one in user.credentials if one.expires_us is not None]
    ahead_us = [end_us for end_us in ends_us if end_us > now_us]
    text = f"the next one expires on {utc_text(min(ahead_us))}" if ahead_us else "none expires"
    found = (finding for user in told.users for finding in _of_user(user, now_us))
    yield from bounded(found, ok("credentials", text))


def _of_user(user: UserInfo, now_us: int) -> Iterator[Finding]:
    counts = any(one.expires_us is None or one.expires_us > now_us for one in user.credentials)
    for one in user.credentials:
        if one.expires_us is None or one.expires_us - now_us > SOON_US:
            continue
        kind = str(one.kind) if one.credential_id == str(one.kind) else f"{one.kind} {one.credential_id}"
        text = f"{kind} of user {user.name} {{}} on {utc_text(one.expires_us)}"
        drop = f"penstock user rotate {user.name} --drop {one.credential_id}"
        if one.expires_us > now_us:
            yield warn("credentials", text.format("expires"), f"give another one: penstock user rotate {user.name}")
        elif counts:
            yield warn("credentials", text.format("expired"), f"if it is not needed any more: {drop}")
        else:
            advice = f"give another one (penstock user rotate {user.name}), or delete the user"
            yield fail("credentials", f"{text.format('expired')}: the user cannot log in", advice)
