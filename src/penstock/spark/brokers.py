"""One client per process and cluster: Spark's Python workers serve many tasks, and are asked many times to plan."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from penstock.client.blocking import Client, connect

_lock = threading.Lock()
_clients: dict[tuple[int, tuple[str, ...], str], Client] = {}

CLIENT_NAME = "penstock-spark"


class Servers(tuple[str, ...]):
    """Where the brokers are, and the file with what they are logged in to with; empty: what the environment says."""

    credentials: str

    @classmethod
    def of(cls, addresses: Iterable[str], credentials: str) -> Servers:
        """These."""
        made = cls(addresses)
        made.credentials = credentials
        return made


def client(servers: tuple[str, ...], timeout_s: float) -> Client:
    """Connected, and kept for the next one who asks in this process. Unavailable, TimedOut."""
    file = getattr(servers, "credentials", "")
    key = (os.getpid(), servers, file)  # a worker may be forked from one that has clients: those are not its own
    with _lock:
        if (found := _clients.get(key)) is None:
            found = _clients[key] = connect(servers, name=CLIENT_NAME, credentials=file or None, timeout=timeout_s)
        return found
