"""How a broker fares, asked from beside it: what probes of containers and supervisors run.

Rules: only where its HTTP port is counts of its settings, and each way is tried: what was given to the broker as a flag
is not known here. Nothing secret is sent, and all that comes back is whether it is well. So no certificate is checked:
it is for the name by which others reach the broker, and what is asked is a port of this machine.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError

HEALTHY, READY = "/healthz", "/readyz"
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 (where it listens; it is reached here)


def ask(address: Address, path: str, *, speaks_tls: bool, timeout_s: float) -> tuple[bool, str]:
    """Whether it says that all is well there, and what it says. OperationalError: nobody answers.

    `speaks_tls`: as far as is known; what does not answer so is asked in the other way.
    """
    failures: list[Exception] = []
    for with_tls in (speaks_tls, not speaks_tls):
        try:
            return _asked(Address(_HERE.get(address.host, address.host), address.port), path, with_tls, timeout_s)
        except (ConnectionRefusedError, TimeoutError) as error:
            failures.append(error)
            break  # nobody is there, or hears, whatever is spoken
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
