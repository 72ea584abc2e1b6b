"""TLS of a client: options, files, and error messages.

Rules: environment variables fill in missing options. A certificate and its key come from the same source. The files are
read when the client is made, and again for new connections after one of them has changed; files that are invalid then
change nothing. All brokers use the same options, including those that other brokers advertise.

| `tls`           | server             | `PENSTOCK_TLS_CA` | protocol                                                  |
|-----------------|--------------------|-------------------|-----------------------------------------------------------|
| not given       | `HOST:PORT`        | not set           | plain                                                     |
| not given       | `HOST:PORT`        | set               | TLS                                                       |
| not given       | `tls://HOST:PORT`  | any               | TLS; without a CA, the system's CAs are trusted           |
| True, or options| any                | any               | the same                                                  |
| False           | `HOST:PORT`        | any               | plain                                                     |
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from penstock.access.secret_files import check_private
from penstock.base.tls_errors import Words, pair_mistake, tls_mistake
from penstock.client.link.addresses import parse_tls

CA_VARIABLE = "PENSTOCK_TLS_CA"
CERT_VARIABLE = "PENSTOCK_TLS_CERT"
KEY_VARIABLE = "PENSTOCK_TLS_KEY"

_WORDS = Words(
    authority=f"tls ca=, --tls-ca or {CA_VARIABLE}",
    certificate=f"tls cert= and key=, --tls-cert and --tls-key, or {CERT_VARIABLE} and {KEY_VARIABLE}",
    name="tls server_name=",
    plain=f"connect without (tls=False, HOST:PORT, no {CA_VARIABLE}), or give the broker a certificate (tls_cert)",
)

_File = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS options of a client. `ca`, `cert` and `key` are PEM files.

    `ca`: certificate authorities that sign the brokers' certificates; None: the system's. `cert` and `key`: the
    client's certificate. `server_name`: the name in the brokers' certificates if it is not the host of each address.
    """

    ca: _File | None = None
    cert: _File | None = None
    key: _File | None = None
    server_name: str | None = None


def settled(
    servers: Sequence[str], tls: bool | TlsOptions | None, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], TlsOptions | None]:
    """Return HOST:PORT of each server, and the TLS options or None. ValueError: contradictory settings."""
    parsed = [parse_tls(one) for one in servers]
    addresses = tuple(dict.fromkeys(address for address, _ in parsed))
    kinds = {said is not None for _, said in parsed}
    if len(kinds) > 1:
        raise ValueError("some servers have tls://, some not; all brokers of a cluster are reached in the same way")
    told = _told(said for _, said in parsed if said)
    if tls is False:
        if kinds == {True}:
            raise ValueError("the server has tls://, and tls is False")
        return addresses, None
    if tls is None and kinds == {False} and not environment.get(CA_VARIABLE):
        return addresses, None
    options = tls if isinstance(tls, TlsOptions) else TlsOptions()
    return addresses, _filled(options, told, environment)


def _told(queries: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge the TLS fields of all server addresses."""
    together: dict[str, str] = {}
    for one in queries:
        for name, value in one.items():
            if together.setdefault(name, value) != value:
                raise ValueError(f"two servers say different files for {name}: {together[name]} and {value}")
    return together


def _filled(options: TlsOptions, told: Mapping[str, str], environment: Mapping[str, str]) -> TlsOptions:
    missing = {field.name: told.get(field.name) for field in fields(options) if getattr(options, field.name) is None}
    if options.cert is not None:
        missing.pop("key", None)
    options = replace(options, **{name: value for name, value in missing.items() if value})
    if options.ca is None and environment.get(CA_VARIABLE):
        options = replace(options, ca=environment[CA_VARIABLE])
    if options.cert is None and options.key is None and environment.get(CERT_VARIABLE):
        key = environment.get(KEY_VARIABLE) or None
        options = replace(options, cert=environment[CERT_VARIABLE], key=key)
    return options


class ClientTls:
    """The TLS context of one client, from its files. ValueError names the invalid file. Blocking."""

    def __init__(self, options: TlsOptions) -> None:
        if options.key is not None and options.cert is None:
            raise ValueError("a key of TLS needs its certificate (cert)")
        self._options = options
        named = (options.ca, options.cert, options.key)
        self._files = tuple(Path(one) for one in named if one is not None)
        self._signature = self._look()
        self._context = self._made()

    def dialling(self, host: str) -> dict[str, Any]:
        """Return the keyword arguments for asyncio's `create_connection` to `host`."""
        signature = self._look()
        if signature != self._signature:
            self._signature = signature
            with contextlib.suppress(ValueError):  # perhaps only one file was replaced yet; the other follows
                self._context = self._made()
        return {"ssl": self._context, "server_hostname": self._options.server_name or host}

    def _look(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for file in self._files:
            try:
                state = os.stat(file)
                found.append((state.st_mtime_ns, state.st_size, state.st_ino))
            except OSError:
                found.append(None)
        return found

    def _made(self) -> ssl.SSLContext:
        options = self._options
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            if options.ca is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(options.ca)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"cannot use {options.ca} for TLS: {reason}") from None
        if options.cert is not None:
            if (key := Path(options.key or options.cert)).is_file():  # without `key` the certificate file contains both
                check_private(key, os.environ)
            try:
                # Without this, an encrypted key would prompt for a passphrase on the terminal.
                context.load_cert_chain(options.cert, options.key, password=lambda: "")
            except (OSError, ValueError) as error:
                raise ValueError(pair_mistake(error, options.cert, options.key, "tls key=, --tls-key")) from None
        return context


def plain(host: str) -> dict[str, Any]:
    """Return the keyword arguments for `create_connection` without TLS."""
    return {}


def why(error: BaseException | None) -> str | None:
    """Return what went wrong and what to do; None: not a TLS error."""
    return tls_mistake(error, _WORDS)
