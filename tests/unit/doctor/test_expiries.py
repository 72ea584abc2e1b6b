"""What is thought of certificates and credentials that end."""

from __future__ import annotations

import pytest

from penstock.access import CredentialKind
from penstock.base.ids import TimestampUs
from penstock.doctor.asking import Asked
from penstock.doctor.expiries import judge_certificates, judge_credentials
from penstock.doctor.findings import Result
from penstock.messages import CertificateInfo, CredentialInfo, ListUsersResponse, UserInfo
from tests.unit.doctor.test_brokers import broker, status

DAY_US = 86_400_000_000
NOW_US = 1_800_000_000_000_000


def ends(days: int) -> TimestampUs:
    return TimestampUs(NOW_US + days * DAY_US)


def credential(days: int | None, credential_id: str = "t1") -> CredentialInfo:
    return CredentialInfo(
        credential_id=credential_id,
        kind=CredentialKind.PASSWORD if credential_id == "password" else CredentialKind.TOKEN,
        created_us=ends(-90),
        expires_us=None if days is None else ends(days),
    )


def of_user(*credentials: CredentialInfo, is_guarded: bool = True) -> list[tuple[Result, str]]:
    user = UserInfo(name="bob", created_us=ends(-90), credentials=credentials)
    found = judge_credentials(ListUsersResponse(users=(user,), is_guarded=is_guarded), NOW_US)
    return [(one.result, one.found) for one in found]


@pytest.mark.parametrize(
    ("days", "result"), [(31, Result.OK), (29, Result.WARN), (1, Result.WARN), (0, Result.FAIL), (-5, Result.FAIL)]
)
def test_a_certificate_is_told_30_days_before_it_ends_and_fails_when_it_has(days: int, result: Result) -> None:
    one = status(2, certificates=(CertificateInfo(setting="tls_ca", expires_us=ends(days)),))
    (found,) = judge_certificates([Asked(broker(1), status(1)), Asked(broker(2), one)], NOW_US)
    assert (found.check, found.result) == ("certificates", result)
    assert result is Result.OK or "broker 2 (tls_ca) end" in found.found


def test_an_authority_that_has_ended_beside_a_good_one_is_told_and_fails_nothing() -> None:
    def found(last_days: int | None) -> tuple[Result, str]:
        last = None if last_days is None else ends(last_days)
        one = CertificateInfo(setting="tls_ca", expires_us=ends(-2), last_expires_us=last)
        (finding,) = judge_certificates([Asked(broker(1), status(1, certificates=(one,)))], NOW_US)
        return finding.result, finding.found

    result, text = found(300)
    assert (result, text[:52]) == (Result.WARN, "an authority in that of broker 1 (tls_ca) ended on 2")
    assert found(-1)[0] is Result.FAIL
    assert found(-2)[0] is Result.FAIL
    assert found(None)[0] is Result.FAIL  # of an earlier version


def test_brokers_without_tls_have_none_and_earlier_ones_tell_their_own() -> None:
    assert not list(judge_certificates([Asked(broker(1), status(1)), Asked(broker(2), failure="away")], NOW_US))
    (found,) = judge_certificates([Asked(broker(1), status(1, tls_expires_us=ends(3)))], NOW_US)
    assert (found.result, "(tls_cert) ends on" in found.found) == (Result.WARN, True)


def test_credentials_that_end_are_told_with_whose_they_are() -> None:
    assert of_user(credential(None)) == [(Result.OK, "none expires")]
    assert of_user(credential(40))[0][0] is Result.OK
    ((result, text),) = of_user(credential(20), credential(None, "password"))
    assert (result, text[:32]) == (Result.WARN, "token t1 of user bob expires on ")
    ((result, text),) = of_user(credential(-1, "password"), credential(None))
    assert (result, text[:32]) == (Result.WARN, "password of user bob expired on ")
    ((result, text),) = of_user(credential(-1))
    assert (result, text.endswith("the user cannot log in")) == (Result.FAIL, True)
    assert not of_user(credential(-1), is_guarded=False)
