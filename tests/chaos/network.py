"""Where processes of a run reach each other: on loopback, or each in a network namespace of its own.

Rules: what is changed is changed in namespaces that this process has made for itself, network and mounts; the machine's
own are never touched, and everything is gone with the last process, however it ended. `enter` comes before there is
any thread or event loop.

| what                  | how                                                                                         |
|-----------------------|---------------------------------------------------------------------------------------------|
| a cut, in one way     | the sender sends to a link address that nobody has: all leaves, and nothing arrives         |
| a slow and lossy link | netem where the kernel has it, else a token bucket whose short queue drops what is too much |
| a small disk          | a tmpfs                                                                                     |
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

_NEW_MOUNTS, _NEW_NETWORK, _NEW_USER = 0x00020000, 0x40000000, 0x10000000
_SET_PARENT_DEATH_SIGNAL = 1
_NAMES = "/run/netns"
_NOWHERE = "02:00:00:00:ff:ff"
_SUBNET = "10.77.0"
_LIBC = ctypes.CDLL(None, use_errno=True)


class CannotError(Exception):
    """This machine does not allow it, and why."""


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotError(f"{command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise CannotError(f"{' '.join(command)}: {done.stderr.strip()}")


def _unshare(flags: int) -> None:
    if _LIBC.unshare(flags) != 0:
        raise CannotError(f"unshare: {os.strerror(ctypes.get_errno())}")


def _dies_with_its_parent() -> None:
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def own_mounts() -> None:
    """Have mounts of this process's own. CannotError."""
    if os.geteuid() != 0:
        user, group = os.geteuid(), os.getegid()
        _unshare(_NEW_USER | _NEW_MOUNTS)
        try:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except OSError as error:
            raise CannotError(f"a user namespace: {error.strerror}") from None
    else:
        _unshare(_NEW_MOUNTS)
    _run("mount", "--make-rprivate", "/")


def small_disk(folder: Path, size_bytes: int) -> None:
    """Mount a disk of that size there. CannotError."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "penstock-chaos", str(folder))


class Loopback:
    """All on 127.0.0.1: nothing can be cut."""

    can_cut = False

    def host(self, node: str) -> str:
        """Its address."""
        assert node
        return "127.0.0.1"

    def before_exec(self, node: str) -> Callable[[], None]:
        """What its process does first."""
        assert node
        return _dies_with_its_parent

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing arrives from the one at the other any more."""
        raise NotImplementedError

    def slow(self, node: str, bits_per_s: int) -> None:
        """What it sends is slow, and some of it is lost."""
        raise NotImplementedError

    def heal(self) -> None:
        """All is whole."""


class Namespaces:
    """Each node in its own, joined by a bridge that is in this process's."""

    can_cut = True

    def __init__(self) -> None:
        """Enter a namespace that nobody else is in. CannotError."""
        if missing := [name for name in ("ip", "tc", "mount") if shutil.which(name) is None]:
            raise CannotError(f"there is no command {', '.join(missing)}")
        _unshare(_NEW_NETWORK)
        try:
            Path(_NAMES).mkdir(exist_ok=True)
        except OSError:
            _run("mount", "-t", "tmpfs", "run", str(Path(_NAMES).parent))
            Path(_NAMES).mkdir()
        _run("mount", "-t", "tmpfs", "names", _NAMES)
        for command in (
            "ip link set lo up",
            "ip link add hub type bridge",
            f"ip address add {_SUBNET}.254/24 dev hub",
            "ip link set hub up",
        ):
            _run(*command.split())
        self._hosts: dict[str, str] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._slow: set[str] = set()

    def host(self, node: str) -> str:
        """Its address; a node that is not there yet is made."""
        if node not in self._hosts:
            number = len(self._hosts) + 1
            self._hosts[node] = f"{_SUBNET}.{number}"
            for command in (
                f"ip netns add {node}",
                f"ip link add port{number} type veth peer name eth0 netns {node}",
                f"ip link set port{number} master hub up",
                f"ip -n {node} link set lo up",
                f"ip -n {node} address add {_SUBNET}.{number}/24 dev eth0",
                f"ip -n {node} link set eth0 up",
            ):
                _run(*command.split())
        return self._hosts[node]

    def before_exec(self, node: str) -> Callable[[], None]:
        """Its process enters the namespace."""
        path = f"{_NAMES}/{node}".encode()

        def enter() -> None:
            _dies_with_its_parent()
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if _LIBC.setns(descriptor, _NEW_NETWORK) != 0:
                os._exit(126)
            os.close(descriptor)

        return enter

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing arrives from the one at the other any more."""
        self._cuts.add((sender, receiver))
        where = f"{self._hosts[receiver]} lladdr {_NOWHERE} dev eth0 nud permanent"
        _run("ip", "-n", sender, "neighbour", "replace", *where.split())

    def slow(self, node: str, bits_per_s: int) -> None:
        """What it sends is slow, and some of it is lost."""
        self._slow.add(node)
        begin = ("ip", "netns", "exec", node, "tc", "qdisc", "replace", "dev", "eth0", "root")
        try:
            _run(*begin, *f"netem delay 20ms 10ms loss 2% rate {bits_per_s}bit".split())
        except CannotError:
            _run(*begin, *f"tbf rate {bits_per_s}bit burst 16kb latency 50ms".split())

    def heal(self) -> None:
        """All is whole."""
        for sender, receiver in self._cuts:
            _run("ip", "-n", sender, "neighbour", "del", self._hosts[receiver], "dev", "eth0")
        for node in self._slow:
            _run("ip", "netns", "exec", node, "tc", "qdisc", "del", "dev", "eth0", "root")
        self._cuts.clear()
        self._slow.clear()


Network = Loopback | Namespaces
