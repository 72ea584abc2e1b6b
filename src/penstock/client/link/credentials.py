"""Select the client's credentials: an argument, else the environment, else none.

| given by                              | is                                                             |
|---------------------------------------|----------------------------------------------------------------|
| `credentials=`, `--credentials`       | a file, or (in Python) a `Credentials`                         |
| `PENSTOCK_CREDENTIALS`                | a file                                                         |
| `PENSTOCK_TOKEN`                      | a token                                                        |
| `PENSTOCK_USER` and `PENSTOCK_PASSWORD` | a user and a password                                        |

Rules: the file is read again for each connection, so credentials can be rotated while programs run. It holds one line:
a token, an nkey seed, or USER:PASSWORD. A file readable by others is refused. A file that held credentials before and
is invalid now counts as being rewritten (a transient error). An argument that looks like a secret instead of a file
name is never repeated in an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.access.credentials import TOKEN_PREFIX, Credentials
from penstock.access.secret_files import VARIABLE, allowed_by, open_to_others
from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.text_files import text_of, value_of_variable
from penstock.client.errors import Unavailable
from penstock.client.publish_format import a_kind

FILE_VARIABLE = "PENSTOCK_CREDENTIALS"
TOKEN_VARIABLE = "PENSTOCK_TOKEN"
USER_VARIABLE, PASSWORD_VARIABLE = "PENSTOCK_USER", "PENSTOCK_PASSWORD"
VARIABLES = (FILE_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE)

_SECRET = re.compile(rf"{TOKEN_PREFIX}|:|\n|S[A-Z][A-Z2-7]{{20}}")  # patterns of secrets, which file names seldom match

Given = Credentials | str | os.PathLike[str] | None
Show = Callable[[], Credentials | None]


def credentials_of(given: Given, environment: Mapping[str, str] = os.environ) -> Show:
    """Return a function that gives the credentials for one connection. ValueError: invalid credentials.

    The function raises OperationalError if they cannot be read; Unavailable if they could be read before.
    """
    if isinstance(given, Credentials):
        return lambda: given
    passed: object = given  # callers without a type checker may pass anything
    if passed is not None and not isinstance(passed, str | os.PathLike):
        text = "give a file's name, or penstock.Credentials.token(…), .password(USER, PASSWORD) or .nkey(…)"
        raise TypeError(f"credentials is {a_kind(passed)}; {text}")
    if given is not None:
        return _File(Path(given), may_be_open=allowed_by(environment))
    environment = {name: value_of_variable(environment[name]) for name in (*VARIABLES, VARIABLE) if name in environment}
    if file := environment.get(FILE_VARIABLE):
        return _File(Path(file), may_be_open=allowed_by(environment))
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


def file_failure(file: Path, error: Exception) -> str:
    """Return the error text for a credentials file that cannot be read; it never repeats what may be a secret."""
    if _SECRET.search(str(file)) is None:
        return f"cannot read the credentials in {file}: {getattr(error, 'strerror', None) or error}"
    return (
        "what was given as the file of credentials looks like the secret itself, and is not repeated here. "
        f"Write it to a file; or set {TOKEN_VARIABLE}, or {USER_VARIABLE} and {PASSWORD_VARIABLE}; "
        "in Python give penstock.Credentials.token(…), .password(…) or .nkey(…)"
    )


class _File:
    """Reads the file on each call; unchanged text reuses the parsed object and its cached computations."""

    def __init__(self, file: Path, *, may_be_open: bool) -> None:
        self._file = file.expanduser()
        self._may_be_open = may_be_open
        self._text: str | None = None
        self._made: Credentials | None = None

    def __call__(self) -> Credentials:
        try:
            with self._file.open("rb") as opened:
                advice = open_to_others(self._file, os.fstat(opened.fileno()))
                text = text_of(opened.read(limits.CREDENTIALS_FILE_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise self._failure(file_failure(self._file, error)) from None
        if advice is not None and not self._may_be_open:
            raise self._failure(f"{advice}; or, in a container, set {VARIABLE}=true")
        if text != self._text or self._made is None:
            try:
                self._made, self._text = Credentials.parsed(text), text
            except ValueError as error:
                raise self._failure(f"{self._file} holds no credentials: {error}") from None
        return self._made

    def _failure(self, text: str) -> OperationalError:
        return OperationalError(text) if self._made is None else Unavailable(text)
