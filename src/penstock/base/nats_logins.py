"""Parses logins to NATS from URLs and files, for the broker, the commands and the client.

Rules: errors never contain a password, a token or a seed. The text before the last `@` of a URL is its login,
percent-encoded where needed. A comma separates URLs, so in a password it is `%2C`.

| written                                 | meaning                   |
|-----------------------------------------|---------------------------|
| `nats://user:password@host:port`        | a user and a password     |
| `nats://token@host:port`                | a token                   |
| a file with a JWT and a seed (`.creds`) | a user of an operator     |
| a file with a seed (`SU…`)              | an nkey                   |
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

_JWT = re.compile(r"-{3,}BEGIN NATS USER JWT-{3,}\s*(\S+)\s*-{3,}END NATS USER JWT-{3,}")
_SEED = re.compile(r"-{3,}BEGIN USER NKEY SEED-{3,}\s*(\S+)\s*-{3,}END USER NKEY SEED-{3,}")
_BARE_SEED = re.compile(r"^\s*(S[A-Z2-7]{57})\s*$", re.MULTILINE)
_LIKE_A_SEED = re.compile(r"S[A-Z2-7]{57}")
_HARMLESS = re.compile(r"(?:\w+://)?(?:\[[0-9A-Fa-f:.%]*\]|[^:/?#@]*)(?::\d*)?/?")


class NatsLogin(NamedTuple):
    """User and password, or token, of a NATS URL, decoded. All None: the URL has no login."""

    user: str | None = None
    password: str | None = None
    token: str | None = None


def nats_urls(text: str) -> list[str]:
    """Split a comma-separated list of URLs. ValueError if a comma may belong to a password."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any("@" in part and "://" not in part for part in parts[1:]):
        raise ValueError(
            "a comma separates servers: write it in a password as %2C, and nats:// before each server with a login"
        )
    return parts


def login_of_url(url: str) -> tuple[str, NatsLogin]:
    """Return the URL without its login, and the decoded login."""
    before, at, host = url.rpartition("@")
    if not at:
        return url, NatsLogin()
    scheme, mark, login = before.partition("://")
    if not mark:
        scheme, login = "", before
    user, colon, password = login.partition(":")
    found = NatsLogin(unquote(user), unquote(password)) if colon else NatsLogin(token=unquote(user))
    return f"{scheme}{mark}{host}", found


def shown_url(url: str) -> str:
    """Return a URL that is safe to show: without its login, and without what may be one if the host is missing."""
    plain, _ = login_of_url(url)
    found = _HARMLESS.match(plain)
    return plain if found is None or found.end() == len(plain) else f"{found[0].rpartition(':')[0] or found[0]}…"


def creds_in(text: str) -> tuple[str, str]:
    """Return the JWT and the seed of a `.creds` file, with any line ends. ValueError if one is missing."""
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise ValueError(f"it holds no user {'JWT' if jwt is None else 'nkey seed'}")
    return jwt[1], seed[1]


def seed_in(text: str) -> str | None:
    """Return the nkey seed that is a line of the text; None: there is none."""
    found = _BARE_SEED.search(text)
    return None if found is None else found[1]


def is_seed_alone(text: str) -> bool:
    """True if the text is an nkey seed and nothing else."""
    return _BARE_SEED.fullmatch(text) is not None


def looks_like_seed(text: str) -> bool:
    """True if the text contains an nkey seed. Such a text is never sent as a token or a password."""
    return _LIKE_A_SEED.search(text) is not None
