"""Bytes that a load costs, by the kernel's counters: on disk, written to files, and between processes.

Rules: All three are differences over a period, of the named folders, processes and ports only. Bytes between processes
are those of connections to the named ports, in both directions, counted once, at the accepting end; they are TCP
payload without headers. A connection that ends during the period is missing in the second count.

    struct nlmsghdr   length, type, flags, sequence, port        16 bytes
    inet_diag_msg     family, state, timer, retrans, ports, …    72 bytes
    attributes        length, type, value                        tcp_info is one of them
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_WANTS_INFO, _INFO = 1 << 1, 2
_ESTABLISHED = 1 << 1
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI48x")
_PORT = struct.Struct("!H")
_PORT_POSITION, _ANSWER_BYTES = 4, 72  # of inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")
_COUNTS = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_COUNTS_POSITION = 120
_READ_BYTES = 1 << 16


class Traffic(NamedTuple):
    """Counters of all processes together: the current size of their files, and cumulative bytes."""

    disk_bytes: int  # file sizes
    written_bytes: int  # dirtied page cache bytes; each page counts once until it is written back
    network_bytes: int

    def since(self, before: Traffic) -> Traffic:
        """Return the counters minus those of `before`."""
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))


def traffic(folders: Iterable[Path], process_ids: Iterable[int], ports: Collection[int]) -> Traffic:
    """Read the counters now. Raise OSError if the system does not provide them."""
    return Traffic(
        disk_bytes=sum(_size_of(folder) for folder in folders),
        written_bytes=sum(_written_by(process_id) for process_id in process_ids),
        network_bytes=sum(count for port, count in _connections() if port in ports),
    )


def _size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue  # it has just been deleted
    return total


def _written_by(process_id: int) -> int:
    for line in Path(f"/proc/{process_id}/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "write_bytes":
            return int(value)
    raise OSError(f"the system does not say what process {process_id} has written")


def _connections() -> Iterator[tuple[int, int]]:
    """Yield the local port of every IPv4 connection, and its bytes in both directions."""
    request = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, _WANTS_INFO, 0, _ESTABLISHED)
    head = _HEAD.pack(_HEAD.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + request)
        while True:
            data = kernel.recv(_READ_BYTES)
            while data:
                length, kind, *_ = _HEAD.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel does not tell about connections")
                yield _connection(data[_HEAD.size : length])
                data = data[(length + 3) & ~3 :]


def _connection(answer: bytes) -> tuple[int, int]:
    (port,) = _PORT.unpack_from(answer, _PORT_POSITION)
    position = _ANSWER_BYTES
    while position + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, position)
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTS_POSITION + _COUNTS.size:
            return port, sum(_COUNTS.unpack_from(answer, position + _ATTRIBUTE.size + _COUNTS_POSITION))
        position += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return port, 0
