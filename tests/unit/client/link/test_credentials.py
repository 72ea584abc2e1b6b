"""Credentials that are given as a file: what is said of one that cannot be read."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from penstock.access.credentials import Credentials
from penstock.access.nkeys import public_key_mistake
from penstock.base.errors import OperationalError
from penstock.client.link.credentials import FILE_VARIABLE, credentials_of

TOKEN = "pst_bob_4f3a9c21_" + "0123456789abcdef" * 4
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else
SECRETS = {
    "a token": (TOKEN, TOKEN[-64:]),
    "a token with more around it": (f"/srv/{TOKEN}\n", TOKEN[-64:]),
    "a seed": (SEED, SEED[20:]),
    "a damaged seed": (SEED[:-9], SEED[20:-9]),
    "a user and a password": ("bob:a/pass word", "pass word"),
    "a file's content": ("-----BEGIN\nabcdef", "abcdef"),
}


@pytest.mark.parametrize(("given", "secret"), SECRETS.values(), ids=list(SECRETS))
def test_a_secret_in_the_place_of_a_file_is_not_repeated(given: str, secret: str) -> None:
    for show in (credentials_of(given, {}), credentials_of(None, {FILE_VARIABLE: given})):
        with pytest.raises(OperationalError, match=r"not repeated here.*PENSTOCK_TOKEN.*Credentials\.token") as told:
            show()
        assert secret not in str(told.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=f"{tmp_path}/bob.token: No such file or directory"):
        credentials_of(tmp_path / "bob.token", {})()


@pytest.mark.parametrize("given", [SEED, SEED[:-1], TOKEN, SEED.lower()])
def test_what_is_no_public_key_is_not_repeated(given: str) -> None:
    told = public_key_mistake(given)
    assert told is not None
    assert given not in told
    assert "U" in told


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_files_and_variables_mean_the_same_whatever_ends_their_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "credentials"
    file.touch(0o600)
    for text in ("bob:pass word", TOKEN):
        for begin in (b"", codecs.BOM_UTF8):
            file.write_bytes(begin + f"{text}{end}".encode())
            assert credentials_of(file)() == Credentials.parsed(text)
    assert credentials_of(None, {"PENSTOCK_CREDENTIALS": f"{file}{end}"})() == Credentials.parsed(TOKEN)
    assert credentials_of(None, {"PENSTOCK_TOKEN": f"{TOKEN}{end}"})() == Credentials.token(TOKEN)
    named = {"PENSTOCK_USER": f"bob{end}", "PENSTOCK_PASSWORD": f"pass word{end}"}
    assert credentials_of(None, named)() == Credentials.password("bob", "pass word")
