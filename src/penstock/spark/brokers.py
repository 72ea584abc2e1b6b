"""Registry of clients, one per process and cluster: a Python worker of Spark uses it for all its tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from penstock.client.blocking.client import Client, connect
from penstock.spark.runtime import worker_garbage

_lock = threading.Lock()
_clients: dict[tuple[int, tuple[str, ...], str], Client] = {}

CLIENT_NAME = "penstock-spark"


class Servers(tuple[str, ...]):
    """Addresses of the brokers, and the path of the credentials file; empty: credentials from the environment."""

    credentials: str

    @classmethod
    def of(cls, addresses: Iterable[str], credentials: str) -> Servers:
        """Create from addresses and the path of the credentials file."""
        made = cls(addresses)
        made.credentials = credentials
        return made


def client(servers: tuple[str, ...], timeout_s: float) -> Client:
    """Return this process's connected client for these servers. Raise Unavailable or TimedOut."""
    file = getattr(servers, "credentials", "")
    key = (os.getpid(), servers, file)  # a forked worker must not use the clients of its parent
    with _lock:
        if (found := _clients.get(key)) is None:
            found = _clients[key] = connect(servers, name=CLIENT_NAME, credentials=file or None, timeout=timeout_s)
        else:  # the process had a task before, which has loaded what tasks need
            worker_garbage.exempt_loaded()
        return found
