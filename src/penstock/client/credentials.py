"""Which credentials a client shows: what it was given, else what the environment says, else none.

| given by                              | is                                                             |
|---------------------------------------|----------------------------------------------------------------|
| `credentials=`, `--credentials`       | a file, or (in Python) a `Credentials`                         |
| `PENSTOCK_CREDENTIALS`                | a file                                                         |
| `PENSTOCK_TOKEN`                      | a token                                                        |
| `PENSTOCK_USER` and `PENSTOCK_PASSWORD` | a user and a password                                        |

Rules: a file is read anew for each connection, so that what it holds can be changed while programs run. It holds one
line: a token, an nkey seed, or USER:PASSWORD.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.access.proving import Credentials
from penstock.base import limits
from penstock.base.errors import OperationalError

FILE_VARIABLE = "PENSTOCK_CREDENTIALS"
TOKEN_VARIABLE = "PENSTOCK_TOKEN"
USER_VARIABLE, PASSWORD_VARIABLE = "PENSTOCK_USER", "PENSTOCK_PASSWORD"
VARIABLES = (FILE_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE)

Given = Credentials | str | os.PathLike[str] | None
Show = Callable[[], Credentials | None]


def credentials_of(given: Given, environment: Mapping[str, str] = os.environ) -> Show:
    """What gives the credentials for one connection. ValueError: they are none; OperationalError when it is called."""
    if isinstance(given, Credentials):
        return lambda: given
    if given is not None:
        return _File(Path(given))
    if file := environment.get(FILE_VARIABLE):
        return _File(Path(file))
    if token := environment.get(TOKEN_VARIABLE):
        found = Credentials.token(token)
        return lambda: found
    user, password = environment.get(USER_VARIABLE), environment.get(PASSWORD_VARIABLE)
    if bool(user) != bool(password):
        missing = PASSWORD_VARIABLE if user else USER_VARIABLE
        raise ValueError(f"{missing} is not set: a user and a password go together")
    if user and password:
        named = Credentials.password(user, password)
        return lambda: named
    return lambda: None


class _File:
    """Reads it each time; what was made of the same text is used again, with what was computed of it."""

    def __init__(self, file: Path) -> None:
        self._file = file.expanduser()
        self._text: str | None = None
        self._made: Credentials | None = None

    def __call__(self) -> Credentials:
        try:
            with self._file.open("rb") as opened:
                text = opened.read(limits.CREDENTIALS_FILE_BYTES_MAX).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise OperationalError(f"cannot read the credentials in {self._file}: {error}") from None
        if text != self._text or self._made is None:
            try:
                self._made, self._text = Credentials.parsed(text), text
            except ValueError as error:
                raise OperationalError(f"{self._file} holds no credentials: {error}") from None
        return self._made
