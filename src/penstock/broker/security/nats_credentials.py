"""Addresses of nats-server and our authentication there: URLs, credentials, certificates.

Rules: secrets are in no `repr` and in no error text. All mistakes of a setting are reported together (ConfigError).
Files are read again for every connection, so that a renewed one takes effect without a restart.

| setting           | form                                                                            |
|-------------------|---------------------------------------------------------------------------------|
| URLs              | `nats://host:port`, `tls://host:port`, `host:port`; several with commas between |
| user and password | options, or `nats://user:password@host` (percent-encoded where needed)          |
| token             | option, or `nats://token@host`                                                  |
| nkey              | a file that holds the seed (`SU…`)                                              |
| JWT               | a `.creds` file: JWT and seed                                                   |
| TLS               | CA file, certificate file, key file (PEM)                                       |

The login in a URL is used for that server; the options for servers whose URL has none.
"""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from penstock.base import limits
from penstock.base.addresses import may_be_host
from penstock.base.errors import ConfigError, OperationalError
from penstock.base.nats_logins import (
    creds_in,
    is_seed_alone,
    login_of_url,
    looks_like_seed,
    nats_urls,
    seed_in,
    shown_url,
)
from penstock.base.text_files import text_of
from penstock.base.tls_errors import pair_mistake
from penstock.broker.security.certificates import CertificateFile, certificates_in, validity_of
from penstock.ingest.connect import ANONYMOUS, Authentication

DEFAULT_PORT = 4222
_SCHEMES = {"nats": False, "tls": True}


@dataclass(frozen=True, slots=True)
class NatsServer:
    """One nats-server to connect to. `str()` shows no secrets."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_name: str | None = None  # expected name in its certificate instead of `host`
    is_embedded: bool = False  # Penstock's own: its login is for Penstock's administrators

    @property
    def verified_host(self) -> str:
        """The name that its certificate must have."""
        return self.tls_name or self.host

    @property
    def without_login(self) -> NatsServer:
        """A copy without user, password and token."""
        return replace(self, user=None, password=None, token=None)

    @property
    def url_with_login(self) -> str:
        """The URL with user and password, or token, as NATS clients take it. A secret."""
        login = [quote(one, safe="") for one in (self.user, self.password, self.token) if one is not None]
        return str(self).replace("://", f"://{':'.join(login)}@", 1) if login else str(self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


def parse_nats_urls(text: str) -> tuple[NatsServer, ...]:
    """Return the servers of a comma-separated list of URLs; raise ConfigError with every mistake."""
    servers: list[NatsServer] = []
    mistakes: list[str] = []
    parts: list[str] = []
    try:
        parts = nats_urls(text)
    except ValueError as error:
        mistakes.append(f"nats: {error}")
    for part in parts:
        try:
            servers.append(_parse_url(part))
        except ValueError as error:
            mistakes.append(f"nats: {shown_url(part)!r}: {error}")
    if not servers and not mistakes:
        mistakes.append("nats: no URL given; write for example nats://localhost:4222")
    if mistakes:
        raise ConfigError(mistakes)
    return tuple(servers)


def _parse_url(text: str) -> NatsServer:
    if "://" not in text:
        text = f"nats://{text}"
    scheme, _, rest = text.partition("://")
    if scheme.lower() not in _SCHEMES:
        # Text before an `@` may be a secret.
        quoted = "" if "@" in text else f" {scheme!r}"
        raise ValueError(f"the scheme{quoted} is not supported; use nats:// or tls://")
    host_part, login = login_of_url(rest)
    # Only the part without secrets goes to a library whose errors quote their input.
    split = urlsplit(f"{scheme}://{host_part}")
    try:
        port = split.port
    except ValueError:
        raise ValueError("the port is not a number between 1 and 65535") from None
    if not split.hostname:
        raise ValueError("the host is missing")
    # `urlsplit` drops line breaks, and accepts all other characters in a name.
    if not host_part.isprintable() or not (":" in split.hostname or may_be_host(split.hostname)):
        raise ValueError("the host is neither a name nor an address")
    if port == 0:
        raise ValueError("the port is not a number between 1 and 65535")
    if split.path not in ("", "/") or split.query or split.fragment:
        raise ValueError("nothing may follow the port")
    return NatsServer(
        host=split.hostname,
        port=DEFAULT_PORT if port is None else port,
        tls=_SCHEMES[scheme.lower()],
        user=login.user,
        password=login.password,
        token=login.token,
    )


@dataclass(frozen=True, slots=True)
class NatsCredentials:
    """Login for servers whose URL has none. At most one way may be set."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_file: Path | None = None
    creds_file: Path | None = None

    def mistakes(self) -> list[str]:
        """Return everything that cannot work, files included; each text names its setting."""
        ways = {
            "user": self.user,
            "token": self.token,
            "nkey file": self.nkey_file,
            "credentials file": self.creds_file,
        }
        chosen = [name for name, value in ways.items() if value is not None]
        mistakes = []
        if len(chosen) > 1:
            mistakes.append(f"nats: choose one way to authenticate; set are: {', '.join(chosen)}")
        if self.password is not None and self.user is None:
            mistakes.append("nats: a password needs a user")
        if self.user is not None and self.password is None:
            mistakes.append("nats: a user needs a password")
        for read, file in ((_read_nkey, self.nkey_file), (_read_creds, self.creds_file)):
            if file is not None:
                try:
                    read(file)
                except OperationalError as error:
                    mistakes.append(f"nats: {error}")
        return mistakes

    def authentication(self, server: NatsServer) -> Authentication:
        """Return the login for `server`. Reads the files; raise OperationalError if one cannot be used."""
        if server.user is not None or server.token is not None:
            return Authentication(user=server.user, password=server.password, token=server.token)
        if self.nkey_file is not None:
            return _read_nkey(self.nkey_file)
        if self.creds_file is not None:
            return _read_creds(self.creds_file)
        if self.user is not None or self.token is not None:
            return Authentication(user=self.user, password=self.password, token=self.token)
        return ANONYMOUS


def read_credentials(file: Path) -> NatsCredentials:
    """Read a file that is a `.creds` file, an nkey seed, or a line with user:password or a token.

    Raise ValueError if it is none of these, or cannot be read.
    """
    try:
        with file.open("rb") as opened:
            text = text_of(opened.read(limits.NATS_LOGIN_FILE_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    if "BEGIN NATS USER JWT" in text:
        made = NatsCredentials(creds_file=file)
    elif is_seed_alone(text):
        made = NatsCredentials(nkey_file=file)
    elif looks_like_seed(text):
        raise ValueError(f"{file} holds an nkey seed and something beside it: a file of a seed holds nothing else")
    elif len(lines := text.splitlines()) == 1 and ":" in text:
        user, _, password = lines[0].partition(":")
        made = NatsCredentials(user=user, password=password)
    elif len(words := text.split()) == 1:
        made = NatsCredentials(token=words[0])
    else:
        raise ValueError(f"{file} holds no NATS credentials, no nkey seed, and not one line with user:password")
    if mistakes := made.mistakes():
        raise ValueError("; ".join(mistakes))
    return made


def _read_nkey(file: Path) -> Authentication:
    seed = seed_in(_read(file))
    if seed is None:
        raise OperationalError(f"{file} holds no nkey seed (a line of 58 characters that begins with SU)")
    return _with_seed(file, seed, jwt=None)


def _read_creds(file: Path) -> Authentication:
    try:
        jwt, seed = creds_in(_read(file))
    except ValueError as error:
        raise OperationalError(f"{file} is not a NATS credentials file: {error}") from None
    return _with_seed(file, seed, jwt=jwt)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return text_of(opened.read(limits.NATS_LOGIN_FILE_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise OperationalError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None


def _with_seed(file: Path, seed: str, *, jwt: str | None) -> Authentication:
    import nkeys  # on demand only: it loads a crypto library

    try:
        prefix, raw = nkeys.decode_seed(seed.encode())
        if nkeys.encode_seed(raw, prefix) != seed.encode():
            raise ValueError("checksum")  # the library does not check it
        pair = nkeys.from_seed(seed.encode())
        public_key = bytes(pair.public_key).decode()
    except (nkeys.NkeysError, ValueError):
        raise OperationalError(f"{file}: the nkey seed is damaged") from None

    def sign(nonce: bytes) -> bytes:
        return bytes(pair.sign(nonce))

    return Authentication(nkey=public_key if jwt is None else None, jwt=jwt, sign=sign)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificates for TLS to nats-server; without a CA file the system's are trusted."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __bool__(self) -> bool:
        return self.ca_file is not None or self.cert_file is not None

    def mistakes(self) -> list[str]:
        """Return everything that cannot work, files included; each text names its setting."""
        if self.key_file is not None and self.cert_file is None:
            return ["nats: a TLS key file needs a certificate file"]
        if not self:
            return []
        try:
            self.context()
        except OperationalError as error:
            return [f"nats: {error}"]
        return []

    def held(self) -> tuple[CertificateFile, ...]:
        """Return the certificates in the files now, as far as they can be read; blocking."""
        found = []
        for setting, file in (("nats_tls_cert", self.cert_file), ("nats_tls_ca", self.ca_file)):
            with contextlib.suppress(OSError, ValueError):
                if file is not None and (those := certificates_in(file)):
                    is_chain = setting == "nats_tls_cert"
                    found.append(CertificateFile(setting, file, tuple(map(validity_of, those)), is_chain=is_chain))
        return tuple(found)

    def context(self) -> ssl.SSLContext:
        """Return a client context that verifies the server; raise OperationalError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "strerror", None) or error
            raise OperationalError(f"cannot use {self.ca_file} for TLS: {reason}") from None
        if self.cert_file is not None:
            try:
                # Without this a key with a passphrase would prompt at the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
            except (OSError, ValueError) as error:
                text = pair_mistake(error, self.cert_file, self.key_file, "nats_tls_key, --nats-tls-key")
                raise OperationalError(text) from None
        return context


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """The access of one NATS client: servers, login, certificates, and the name that it gives."""

    servers: tuple[NatsServer, ...]
    credentials: NatsCredentials = NatsCredentials()
    tls: TlsFiles = TlsFiles()
    uses_announced: bool = True  # also connect to the servers that NATS announces
    name: str = "penstock"
    version: str = "0"

    def mistakes(self) -> list[str]:
        """Return everything about the login and the certificates that cannot work."""
        return [*self.credentials.mistakes(), *self.tls.mistakes()]
