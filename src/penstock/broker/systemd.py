"""Tell systemd how the broker fares: the sd_notify protocol, which is one datagram to a UNIX socket.

Rules: without NOTIFY_SOCKET nothing happens; a datagram that cannot be sent is not worth stopping for.
A socket name that begins with `@` is in Linux's abstract namespace, where the first byte is zero.

    READY=1 | STOPPING=1 | STATUS=<text>, one per line
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

NOTIFY_VARIABLE = "NOTIFY_SOCKET"


class Notifier:
    """Speaks to the socket that `environment` names. Every call says whether systemd was told."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get(NOTIFY_VARIABLE, "")

    def ready(self, status: str = "") -> bool:
        """The broker serves."""
        return self._send("READY=1", status)

    def stopping(self, status: str = "") -> bool:
        """The broker has begun to stop."""
        return self._send("STOPPING=1", status)

    def status(self, status: str) -> bool:
        """A line for `systemctl status`."""
        return self._send("", status)

    def _send(self, state: str, status: str) -> bool:
        if not self._path.startswith(("/", "@")):
            return False
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        lines = filter(None, (state, f"STATUS={' '.join(status.split())}" if status else ""))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a systemd that does not read must not stop the event loop
                sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
        return True
