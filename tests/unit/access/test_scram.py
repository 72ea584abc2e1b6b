"""Proofs: the RFC's own example, each wrong message, and nobody who is told anything about users."""

from __future__ import annotations

import base64
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import scram
from penstock.access.credentials import Credentials, shown_name, token_text
from penstock.access.handshake import MECHANISMS, Principal, ServerHandshake
from penstock.access.nkeys import NkeyClient, public_key_mistake
from penstock.access.scram import ScramClient, ScramServer, ScramVerifier, verifier_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")  # RFC 7677, section 3
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
NKEY_SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else
CREDENTIALS = [
    Credentials.password("ann", "pencil"),
    Credentials.token(token_text("ann", "t1", "s3cret")),
    Credentials.nkey(NKEY_SEED),
]


PENCIL = verifier_of("pencil", SALT, limits.PASSWORD_ITERATIONS)


class Known:
    """A directory of two users."""

    decoy_key = b"secret"

    def __init__(self) -> None:
        self.nkeys: dict[str, Principal] = {}
        self.over: set[str] = set()
        self.verifiers = {
            "ann": (PENCIL, Principal("ann", 3, "password")),
            "ann/t1": (verifier_of("s3cret", SALT, 1), Principal("ann", 3, "t1")),
        }

    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        return self.verifiers.get(name)

    def holder(self, public_key: str) -> Principal | None:
        return self.nkeys.get(public_key)

    def expired(self, who: Principal) -> str | None:
        return f"this {who.credential_id} expired" if who.credential_id in self.over else None


def log_in(handshake: ServerHandshake, credentials: Credentials, nonce: str = "n" * 20) -> None:
    login = credentials.proof(lambda: nonce)
    challenge = handshake.take(login.mechanism, login.first())
    final = login.take(challenge, is_done=False)
    assert final is not None
    assert login.take(handshake.take(login.mechanism, final), is_done=True) is None
    assert login.is_done


def test_the_example_of_the_rfc() -> None:
    client = ScramClient("user", "pencil", CLIENT_NONCE, iterations=4096)
    server = ScramServer(SERVER_NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.challenge(client.first(), verifier_of("pencil", SALT, 4096))
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.prove(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    signature = server.check(final)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.check(signature)


def test_whoever_knows_the_secret_is_let_in_and_knows_who_let_him() -> None:
    for credentials in (Credentials.password("ann", "pencil"), Credentials.token(token_text("ann", "t1", "s3cret"))):
        handshake = ServerHandshake(Known(), "m" * 20)
        log_in(handshake, credentials)
        assert handshake.is_done
        assert handshake.who is not None
        assert handshake.who.name == "ann"


def test_an_nkey_lets_in_whose_it_is() -> None:
    known = Known()
    known.nkeys[NkeyClient(NKEY_SEED, "").public_key] = Principal("bob", 4, "k1")
    handshake = ServerHandshake(known, "m" * 20)
    log_in(handshake, Credentials.nkey(NKEY_SEED))
    assert handshake.who == Principal("bob", 4, "k1")


def test_an_nkey_that_is_nobodys_lets_nobody_in() -> None:
    handshake = ServerHandshake(Known(), "m" * 20)
    with pytest.raises(RemoteError) as caught:
        log_in(handshake, Credentials.nkey(NKEY_SEED))
    assert caught.value.code == ErrorCode.UNAUTHENTICATED
    assert handshake.who is None


@pytest.mark.parametrize(("user", "password"), [("ann", "pencils"), ("nobody", "pencil")])
def test_whoever_does_not_is_refused_in_the_same_words(user, password) -> None:
    handshake = ServerHandshake(Known(), "m" * 20)
    with pytest.raises(RemoteError, match="the name or the secret is wrong") as caught:
        log_in(handshake, Credentials.password(user, password))
    assert caught.value.code == ErrorCode.UNAUTHENTICATED
    with pytest.raises(RemoteError):  # and gets no second try
        log_in(handshake, Credentials.password("ann", "pencil"))
    assert handshake.who is None


def test_whoever_is_not_there_is_challenged_like_anybody_else_and_always_the_same() -> None:
    def challenge(name: str) -> tuple[bytes, int]:
        client = ScramClient(name, "x", "n" * 20, iterations=1 if "/" in name else 600_000)
        return client.asked(ServerHandshake(Known(), "m" * 20).take(scram.MECHANISM, client.first()))

    assert challenge("nobody") == challenge("nobody")
    assert challenge("nobody") != challenge("somebody")
    assert len(challenge("nobody")[0]) == 16
    assert challenge("nobody")[1] == 600_000
    assert challenge("nobody/t")[1] == 1


@pytest.mark.parametrize("credentials", CREDENTIALS[:2])
@pytest.mark.parametrize("iterations", [0, 1, 2, 4096, 100_000, 599_999, 600_000, 600_001, 10_000_000, 999_999_999])
def test_a_client_hashes_a_secret_as_often_as_all_brokers_have_it_or_not_at_all(
    credentials, iterations, monkeypatch
) -> None:
    """Fewer hashes are guessed sooner by who sits in a broker's place; more would keep the client busy."""
    hashed: list[int] = []

    def salted(secret: str, salt: bytes, count: int) -> bytes:
        hashed.append(count)
        return bytes(32)

    monkeypatch.setattr(scram, "salted", salted)
    login = dataclasses.replace(credentials, _salted={}).proof(lambda: "n" * 20)
    challenge = ScramServer("m" * 20).challenge(login.first(), PENCIL._replace(iterations=iterations))
    only = 1 if credentials.is_token else 600_000
    if iterations == only:
        login.take(challenge, is_done=False)
        assert hashed == [only]
    else:
        with pytest.raises(RemoteError, match=f"asks for {iterations} iterations.*{only}"):
            login.take(challenge, is_done=False)
        assert hashed == []


def test_a_client_does_not_trust_a_broker_that_knows_nothing() -> None:
    login = Credentials.token(token_text("ann", "t1", "s3cret")).proof(lambda: "n" * 20)
    login.take(ScramServer("m" * 20).challenge(login.first(), verifier_of("other", SALT, 1)), is_done=False)
    with pytest.raises(RemoteError, match="does not prove that it knows this user"):
        login.take(b"v=" + base64.b64encode(bytes(32)), is_done=True)


@pytest.mark.parametrize("credentials", CREDENTIALS)
@pytest.mark.parametrize("answer", [b"v=", b"v=AA==", b"", b"r=" + b"n" * 40])
def test_a_login_that_is_done_before_anything_was_proved_proves_nothing(credentials, answer) -> None:
    """As an impostor says it who knows no secret: `v=` is the signature of nothing."""
    login = credentials.proof(lambda: "n" * 20)
    login.first()
    with pytest.raises(RemoteError, match="without a challenge") as caught:
        login.take(answer, is_done=True)
    assert caught.value.code == ErrorCode.UNAUTHENTICATED
    assert not login.is_done


def test_the_signature_of_nothing_is_none() -> None:
    client = ScramClient("ann/t1", "s3cret", "n" * 20, iterations=1)
    for final in (b"v=", b"v=" + base64.b64encode(bytes(32))):
        with pytest.raises(RemoteError, match="does not prove that it knows this user"):
            client.check(final)


@pytest.mark.parametrize("credentials", CREDENTIALS)
def test_a_broker_asks_once_for_a_proof(credentials, monkeypatch) -> None:
    """Each costs thousands of hashes: whoever knows no secret could keep a broker busy."""
    known = Known()
    known.nkeys[NkeyClient(NKEY_SEED, "").public_key] = Principal("bob", 4, "k1")
    login = credentials.proof(lambda: "n" * 20)
    first = login.first()
    assert login.take(ServerHandshake(known, "m" * 20).take(login.mechanism, first), is_done=False) is not None
    monkeypatch.setattr(scram, "salted", None)  # whatever came now would cost
    for _ in range(2):
        again = ServerHandshake(known, "o" * 20).take(login.mechanism, first)
        with pytest.raises(RemoteError, match="does not belong to a login"):
            login.take(again, is_done=False)
    assert not login.is_done


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "PLAIN", ""])
@given(first=st.binary(max_size=200), final=st.binary(max_size=200))
def test_no_message_does_more_than_being_refused(mechanism, first, final) -> None:
    handshake = ServerHandshake(Known(), "m" * 20)
    for message in (first, final):
        with pytest.raises(RemoteError) as caught:
            handshake.take(mechanism, message)
        assert caught.value.code == ErrorCode.UNAUTHENTICATED


@given(st.integers(0, 120), st.integers(0, 255))
def test_a_proof_of_which_a_byte_is_wrong_proves_nothing(at, byte) -> None:
    handshake = ServerHandshake(Known(), "m" * 20)
    client = ScramClient("ann/t1", "s3cret", "n" * 20, iterations=1)
    final = bytearray(client.prove(handshake.take(scram.MECHANISM, client.first())))
    at %= len(final)
    if final[at] == byte:
        handshake.take(scram.MECHANISM, bytes(final))
        assert handshake.is_done
        return
    final[at] = byte
    with pytest.raises(RemoteError):
        handshake.take(scram.MECHANISM, bytes(final))
    assert handshake.who is None


def test_a_message_of_another_mechanism_does_not_go_on_with_it() -> None:
    handshake = ServerHandshake(Known(), "m" * 20)
    client = ScramClient("ann/t1", "s3cret", "n" * 20, iterations=1)
    final = client.prove(handshake.take(scram.MECHANISM, client.first()))
    with pytest.raises(RemoteError, match="does not belong to a login"):
        handshake.take("NKEY", final)


def test_what_is_kept_of_a_secret_shows_in_no_text() -> None:
    for credentials in (Credentials.password("ann", "pencil"), Credentials.nkey(NKEY_SEED)):
        assert "pencil" not in repr(credentials)
        assert NKEY_SEED not in repr(credentials)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ann:pen:cil\n", "ann"),
        (token_text("a_n_n", "t1", "s3cret") + "\n", "a_n_n/t1"),
        (NKEY_SEED + "\n", ""),
    ],
)
def test_a_file_of_credentials_says_what_they_are(text, name) -> None:
    assert Credentials.parsed(text).name == name
    assert Credentials.parsed(text).secret not in shown_name(Credentials.parsed(text))


@pytest.mark.parametrize("text", ["", "ann", "ann:", "pst_x", "pst_ann_", ":x", "a b:c", "ann:x\nbob:y"])
def test_what_is_none_of_them_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"token|empty|name|expected"):
        Credentials.parsed(text)


@pytest.mark.parametrize("text", ["pa$s:secret", '{"user": "a", "password": "b"}', "a b:c"])
def test_what_may_be_a_part_of_a_secret_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="not repeated here") as raised:
        Credentials.parsed(text)
    assert text.partition(":")[0] not in str(raised.value)


def test_a_damaged_nkey_is_told_apart() -> None:
    assert public_key_mistake(NkeyClient(NKEY_SEED, "").public_key) is None
    assert public_key_mistake("U" + "A" * 55) is not None
    with pytest.raises(OperationalError, match="damaged"):
        NkeyClient("SU" + "A" * 56, "n")


def test_who_proves_what_has_expired_hears_so_and_nobody_else_does() -> None:
    known = Known()
    known.over = {"t1"}
    with pytest.raises(RemoteError, match="this t1 expired") as raised:
        log_in(ServerHandshake(known, "m" * 20), Credentials.token(token_text("ann", "t1", "s3cret")))
    assert raised.value.code == ErrorCode.UNAUTHENTICATED
    for credentials in (
        Credentials.token(token_text("ann", "t1", "guessed")),
        Credentials.token(token_text("bob", "t1", "s3cret")),
    ):
        with pytest.raises(RemoteError, match="the name or the secret is wrong"):
            log_in(ServerHandshake(known, "m" * 20), credentials)
    handshake = ServerHandshake(known, "m" * 20)
    log_in(handshake, Credentials.password("ann", "pencil"))
    assert handshake.is_done
