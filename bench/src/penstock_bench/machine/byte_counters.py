"""Bytes that a load costs, by the kernel's counters: on disk, written to files, and between processes.

Rules: All three are growth over a period, of the named folders, processes and ports only, counted for each file,
process and connection: one that ends during the period does not reduce the others. Bytes between processes are those of
connections to the named ports, in both directions, counted once, at the accepting end; they are TCP payload without
headers.

    struct nlmsghdr   length, type, flags, sequence, port        16 bytes
    inet_diag_msg     family, state, timer, retrans, ports, …    72 bytes
    attributes        length, type, value                        tcp_info is one of them
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_WANTS_INFO, _INFO = 1 << 1, 2
_ESTABLISHED = 1 << 1
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI48x")
_PORT = struct.Struct("!H")
_PORT_POSITION, _ANSWER_BYTES = 4, 72  # of inet_diag_msg
_ID = slice(_PORT_POSITION, 52)  # ports, addresses, interface, and a cookie that no later connection has
_ATTRIBUTE = struct.Struct("=HH")
_COUNTS = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_COUNTS_POSITION = 120
_READ_BYTES = 1 << 16


class Traffic(NamedTuple):
    """Counters by file, process and connection: the current size of files, and cumulative bytes of the others."""

    files: Mapping[Path, int]
    writers: Mapping[int, int]  # by process id: dirtied page cache bytes; each page counts once until written back
    connections: Mapping[bytes, int]

    @property
    def disk_bytes(self) -> int:
        """File sizes."""
        return sum(self.files.values())

    @property
    def written_bytes(self) -> int:
        """Bytes written to files."""
        return sum(self.writers.values())

    @property
    def network_bytes(self) -> int:
        """Bytes of connections."""
        return sum(self.connections.values())

    def since(self, before: Traffic) -> Traffic:
        """Return the growth of each counter since `before`."""
        return Traffic(
            _grown(self.files, before.files),
            _grown(self.writers, before.writers),
            _grown(self.connections, before.connections),
        )


Key = TypeVar("Key")


def _grown(now: Mapping[Key, int], then: Mapping[Key, int]) -> dict[Key, int]:
    return {key: max(0, count - then.get(key, 0)) for key, count in now.items()}


def traffic(folders: Iterable[Path], process_ids: Iterable[int], ports: Collection[int]) -> Traffic:
    """Read the counters now. Raise OSError if the system does not provide them."""
    return Traffic(
        files={file: size for folder in folders for file, size in _sizes(folder)},
        writers={process_id: _written_by(process_id) for process_id in process_ids},
        connections={one: count for port, one, count in _connections() if port in ports},
    )


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    for file in folder.rglob("*"):
        try:
            if file.is_file():
                yield file, file.stat().st_size
        except FileNotFoundError:
            continue  # it has just been deleted


def _written_by(process_id: int) -> int:
    for line in Path(f"/proc/{process_id}/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "write_bytes":
            return int(value)
    raise OSError(f"the system does not say what process {process_id} has written")


def _connections() -> Iterator[tuple[int, bytes, int]]:
    """Yield the local port of every IPv4 connection, its id, and its bytes in both directions."""
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


def _connection(answer: bytes) -> tuple[int, bytes, int]:
    (port,) = _PORT.unpack_from(answer, _PORT_POSITION)
    socket_id = answer[_ID]
    position = _ANSWER_BYTES
    while position + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, position)
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTS_POSITION + _COUNTS.size:
            return port, socket_id, sum(_COUNTS.unpack_from(answer, position + _ATTRIBUTE.size + _COUNTS_POSITION))
        position += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return port, socket_id, 0
