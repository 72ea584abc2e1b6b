"""The first user of a cluster: who may log in where everybody has to and nobody can yet.

Rules: an administrator called admin. Without a password of the operator's one is drawn by chance, and written into a
file of the data directory that only its owner reads, before anything else is done with it; a later start finds it
there. It is such a file as clients take (`--credentials`).
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from penstock.access import Credential, CredentialKind, Operation, Rule, User
from penstock.access.scram import verifier_of
from penstock.access.users import PASSWORD_ID
from penstock.base import limits
from penstock.base.errors import OperationalError

NAME = "admin"
FILE = "admin.credentials"
SECRET_FILE = "cluster.secret"


def first_user(password: str, now_us: int, *, salt: bytes) -> User:
    """The administrator with that password."""
    keys = verifier_of(password, salt, limits.PASSWORD_ITERATIONS)
    credential = Credential(PASSWORD_ID, CredentialKind.PASSWORD, now_us, None, *keys)
    return User(NAME, now_us, (credential,), (Rule(Operation.ADMIN),))


def drawn_password(data_dir: Path) -> tuple[str, bool]:
    """The password in the file of a data directory, made if it is not there; whether it was. OperationalError."""
    file = data_dir / FILE
    text, is_new = _drawn(file, f"{NAME}:{secrets.token_urlsafe(24)}")
    name, _, password = text.partition(":")
    if name != NAME or not password:
        raise OperationalError(
            f"{file} does not hold {NAME}:PASSWORD; restore it, or delete it if no user was made yet"
        )
    return password, is_new


def shared_secret(folder: Path) -> str:
    """The secret that brokers of one machine share, made if it is not there. OperationalError."""
    file = folder / SECRET_FILE
    secret = _drawn(file, secrets.token_urlsafe(32))[0]
    if len(secret) < limits.CLUSTER_SECRET_CHARS_MIN:
        raise OperationalError(f"{file} is cut off; restore it, or delete it: all brokers of this machine get another")
    return secret


def _drawn(file: Path, text: str) -> tuple[str, bool]:
    """What is in the file, and False; or `text`, which is there from now on, all of it, and True."""
    try:
        with file.open("rb") as opened:
            return opened.read(limits.CREDENTIALS_FILE_BYTES_MAX).decode().strip(), False
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise OperationalError(f"cannot read {file}: {error}") from error
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(f"{text}\n".encode())
            opened.flush()
            os.fsync(opened.fileno())
        new.rename(file)
    except OSError as error:
        raise OperationalError(f"cannot write {file}: {error.strerror or error}") from error
    return text, True
