"""Convert NATS logins for nats-py, which does not decode URLs and reads only files with Unix line ends.

Rules: a URL and a file mean the same here as to a broker. Files are read again for each connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.base import limits
from penstock.base.nats_logins import NatsLogin, creds_in, login_of_url, seed_in
from penstock.base.text_files import text_of

_CREDS = (
    "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
    "-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
)
_WAYS = ("user", "password", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str", "user_jwt_cb", "signature_cb")


def nats_login(urls: Sequence[str], options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the URLs and login options for nats-py. ValueError: nats-py cannot use these logins.

    A login option applies to all servers, as in nats-py; without one the logins in the URLs are used.
    """
    parted = [login_of_url(url) for url in urls]
    plain = [url for url, _ in parted]
    if any(options.get(way) is not None for way in _WAYS):
        return plain, _from_files(options)
    logins = {login for _, login in parted}
    if len(logins) > 1:
        if all(url.isascii() and _is_as_written(url, login) for url, (_, login) in zip(urls, parted, strict=True)):
            return list(urls), {}
        raise ValueError(
            "the NATS servers have different logins, and one of them is percent-encoded: nats-py cannot take that; "
            "give all servers the same login, or an option of its own"
        )
    return plain, {name: value for name, value in logins.pop()._asdict().items() if value is not None}


def _is_as_written(url: str, login: NatsLogin) -> bool:
    """True if nats-py parses the same login from the URL; it decodes nothing, and splits at the first / ? # or @."""
    said = ":".join(one for one in login if one is not None)
    return not said or (f"{said}@" in url and not set(said) & set("/?#@[]"))


def _from_files(options: Mapping[str, Any]) -> dict[str, Any]:
    creds, seed = options.get("user_credentials"), options.get("nkeys_seed")
    if isinstance(creds, str | Path):
        _creds(Path(creds))  # report mistakes at once
        return {"user_credentials": _read_anew(Path(creds))}
    if isinstance(seed, str | Path):
        if (found := seed_in(_text(Path(seed)))) is None:
            raise ValueError(f"{seed} holds no nkey seed")
        return {"nkeys_seed": None, "nkeys_seed_str": found}
    return {}


def _creds(file: Path) -> tuple[str, str]:
    try:
        return creds_in(_text(file))
    except ValueError as error:
        raise ValueError(f"{file} is not a NATS credentials file: {error}") from None


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return text_of(opened.read(limits.NATS_LOGIN_FILE_BYTES_MAX))


def _read_anew(file: Path) -> Any:
    """Return credentials for nats-py that read the `.creds` file anew for each connection."""
    from nats.aio.client import RawCredentials

    class Read(RawCredentials):
        @property
        def data(self) -> str:
            jwt, seed = _creds(file)
            return _CREDS.format(jwt=jwt, seed=seed)

        @data.setter
        def data(self, text: str) -> None:
            pass  # ignore the initial value

    return Read("")
