"""Secrets that a broker generates: the first administrator's password, a cluster secret, the login to NATS.

Rules: each is in a file of the data directory readable only by its owner, and is persisted before it is used; a later
start finds it there. A file with unexpected content is never replaced. A file accessible to others causes a warning,
not an error: in Kubernetes `fsGroup` gives a whole volume to a group at each start.

| file                | contains           | used by                                                                   |
|---------------------|--------------------|---------------------------------------------------------------------------|
| `admin.credentials` | admin:PASSWORD     | the first administrator: `--credentials`                                  |
| `cluster.secret`    | the cluster secret | brokers of one machine, to authenticate to each other                     |
| `nats.credentials`  | penstock:PASSWORD  | clients that publish through the embedded nats-server: `--nats-creds`     |
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from penstock.access import Credential, CredentialKind, Operation, Rule, User
from penstock.access.scram import verifier_of
from penstock.access.secret_files import open_to_others
from penstock.access.users import ADMIN_CREDENTIALS_FILE, PASSWORD_ID
from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.text_files import text_of
from penstock.node.security.auth_markers import GUARDED_PATH
from penstock.vfs.real import RealVfs, read_whole

_log = logging.getLogger("penstock.broker")

NAME = "admin"
SECRET_FILE = "cluster.secret"
NATS_USER = "penstock"
NATS_FILE = "nats.credentials"
_NATS_PASSWORD = re.compile(r"[A-Za-z0-9_-]{8,128}")  # needs no quoting in nats-server.conf and in a URL


def first_user(password: str, now_us: int, *, salt: bytes) -> User:
    """Return the administrator with that password."""
    keys = verifier_of(password, salt, limits.PASSWORD_ITERATIONS)
    credential = Credential(PASSWORD_ID, CredentialKind.PASSWORD, now_us, None, *keys)
    return User(NAME, now_us, (credential,), (Rule(Operation.ADMIN),))


def drawn_password(data_dir: Path) -> tuple[str, bool]:
    """Return the password in the file of a data directory, and True if it was generated now. Raise OperationalError."""
    file = data_dir / ADMIN_CREDENTIALS_FILE
    text, is_new = _drawn(file, f"{NAME}:{secrets.token_urlsafe(24)}")
    name, _, password = text.partition(":")
    if name != NAME or not password:
        raise OperationalError(
            f"{file} does not hold {NAME}:PASSWORD; restore it, or delete it if no user was made yet"
        )
    return password, is_new


def shared_secret(folder: Path) -> str:
    """Return the secret shared by the brokers of one machine, generated if missing. Raise OperationalError."""
    file = folder / SECRET_FILE
    secret = _drawn(file, secrets.token_urlsafe(32))[0]
    if len(secret) < limits.CLUSTER_SECRET_CHARS_MIN:
        raise OperationalError(f"{file} is cut off; restore it, or delete it: all brokers of this machine get another")
    return secret


def nats_password(folder: Path) -> str:
    """Return the password of the embedded nats-server's only user, generated if missing. Raise OperationalError."""
    file = folder / NATS_FILE
    text, is_new = _drawn(file, f"{NATS_USER}:{secrets.token_urlsafe(24)}")
    name, _, password = text.partition(":")
    if name != NATS_USER or not _NATS_PASSWORD.fullmatch(password):
        raise OperationalError(
            f"{file} does not hold {NATS_USER}:PASSWORD, with a password of 8 to 128 letters, digits, - and _; restore "
            "it, or delete it: another one is drawn"
        )
    if is_new:
        _log.info("drew a password for the embedded nats-server: %s", file)
    return password


def embedded_password(folder: Path, broker_dirs: Iterable[Path], *, auth: bool) -> str | None:
    """Return the password of the embedded nats-server; None without `auth`, unless one of the brokers has users."""
    is_guarded = auth or any((one / GUARDED_PATH).exists() for one in broker_dirs)
    return nats_password(folder) if is_guarded else None


def _drawn(file: Path, text: str) -> tuple[str, bool]:
    """Return the file's content and False; if there is no file, write `text` to it and return it and True."""
    try:
        found = text_of(read_whole(file, limits.CREDENTIALS_FILE_BYTES_MAX)).strip()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise OperationalError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
    else:
        if (advice := open_to_others(file, file.stat())) is not None:
            _log.warning("%s", advice)
        return found, False
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(f"{text}\n".encode())
            opened.flush()
            os.fsync(opened.fileno())
        new.rename(file)
        RealVfs(file.parent).sync_dir("")  # the metadata may depend on this secret
    except OSError as error:
        raise OperationalError(f"cannot write {new}, to be renamed: {error.strerror or error}") from error
    return text, True
