"""Reports state to systemd: the sd_notify protocol, which is one datagram to a UNIX socket.

Rules: without NOTIFY_SOCKET nothing happens; a datagram that cannot be sent is ignored.
A socket name that begins with `@` is in Linux's abstract namespace, where the first byte is zero.

    READY=1 | STOPPING=1 | STATUS=<text>, one per line
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

NOTIFY_VARIABLE = "NOTIFY_SOCKET"


class Notifier:
    """Sends to the socket that `environment` names. Every call returns True if the datagram was sent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get(NOTIFY_VARIABLE, "")

    def ready(self, status: str = "") -> bool:
        """Report that the broker serves."""
        return self._send("READY=1", status)

    def stopping(self, status: str = "") -> bool:
        """Report that the broker has begun to stop."""
        return self._send("STOPPING=1", status)

    def status(self, status: str) -> bool:
        """Set the status line of `systemctl status`."""
        return self._send("", status)

    def _send(self, state: str, status: str) -> bool:
        if not self._path.startswith(("/", "@")):
            return False
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        lines = filter(None, (state, f"STATUS={' '.join(status.split())}" if status else ""))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a systemd that does not read must not block the event loop
                sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
        return True
