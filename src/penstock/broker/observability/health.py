"""Client of a broker's health checks, for probes of containers and supervisors on the same machine.

Rules: only the HTTP address is taken from the settings, and both TLS and plain are tried: flags given to the broker are
not known here. Nothing secret is sent, and only the health comes back, so no certificate is verified: it is for the
broker's public name, and this is a port of this machine.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError

HEALTHY, READY = "/healthz", "/readyz"
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 (listening address, reached via loopback)


def ask(address: Address, path: str, *, speaks_tls: bool, timeout_s: float) -> tuple[bool, str]:
    """Return True if the broker reports success, and its text. Raise OperationalError if no broker answers.

    `speaks_tls`: the protocol to try first.
    """
    failures: list[Exception] = []
    for with_tls in (speaks_tls, not speaks_tls):
        try:
            return _asked(Address(_HERE.get(address.host, address.host), address.port), path, with_tls, timeout_s)
        except (ConnectionRefusedError, TimeoutError) as error:
            failures.append(error)
            break  # the other protocol would fail as well
        except (OSError, http.client.HTTPException) as error:
            failures.append(error)
    reason = str(failures[0]) or type(failures[0]).__name__
    raise OperationalError(f"no broker answers over HTTP at {address}: {reason}")


def _asked(address: Address, path: str, with_tls: bool, timeout_s: float) -> tuple[bool, str]:
    connection: http.client.HTTPConnection
    if with_tls:
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=unchecked)
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read(limits.HTTP_PIECE_BYTES).decode("utf-8", "replace").strip()
        return answer.status == http.client.OK, said or f"{answer.status} {answer.reason}"
