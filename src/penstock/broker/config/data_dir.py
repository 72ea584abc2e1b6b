"""The data directory: identity, format, exclusive use by one broker, and the settings that fit it.

    penstock.json   {"format": 1, "id": "<random, made once>", "broker_id": 1, "cluster_id": "<once it is known>",
                     "guards": ["raft/synced", …], "crc32c": "<of all else>"}
    LOCK            process id of the running broker, for people

Broker id and cluster id are set once: another broker's data must not be mistaken for this one's. A directory without a
broker_id belongs to broker 1: it was made by a version without clusters.

A directory created here is accessible to its owner only, whatever the umask, which protects everything in it. An
existing one keeps its mode; if others can read it, a warning is logged.

The lock is a flock(2) on the directory itself: a lock file in it could be removed or replaced, and two brokers hold one
each.

A data directory belongs to one cluster for good. Settings not given are taken from the directory; a contradiction ends
the start, before anything is changed and before any broker is contacted. All mistakes are reported together.

| the directory is           | with                         | then                                              |
|----------------------------|------------------------------|---------------------------------------------------|
| new                        | `listen` not as in `cluster` | refused: the others would look for it elsewhere   |
| new                        | anything else                | as the settings say                               |
| of a single broker         | `cluster` of several, `join` | refused: it would stay a cluster of one           |
| of several                 | `cluster` of others only     | refused                                           |
| of several                 | no `nats`                    | refused: a NATS of its own reaches no publisher   |
| of several                 | no `listen`, no `cluster`    | listens at its registered address                 |
| of several                 | `listen` not as in `cluster` | accepted: the broker has moved                    |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import stat
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.access.users import password_mistake
from penstock.base import limits
from penstock.base.addresses import is_address, parse_address
from penstock.base.errors import ConfigError, OperationalError
from penstock.base.ids import BrokerId, are_different_clusters
from penstock.broker.config.checks import beyond_reach, unprotected
from penstock.broker.config.config import BrokerConfig
from penstock.hot.crc import crc32c
from penstock.node.data_dir.known_brokers import KnownBrokers
from penstock.node.security.auth_markers import GUARDED_PATH
from penstock.vfs import NFS_LEFTOVER
from penstock.vfs.real import read_whole, sync_folder

_log = logging.getLogger("penstock.broker")

DATA_FORMAT = 1

_IDENTITY = "penstock.json"
_LOCK = "LOCK"
MACHINE_FILE = "brokers.json"
"""The file of a directory that contains the data directories of one machine's brokers: see `machine_dir`."""
_OWN = frozenset({_LOCK, f"{_IDENTITY}.new", f"{MACHINE_FILE}.new"})
# Created by file systems and desktops in the root of a mount; not user data.
_FOREIGN = re.compile(
    r"lost\+found|\.snapshots?|\.zfs|\.Trash(es|-\d+)?|\.DS_Store|\.fseventsd|\.Spotlight-V100|" + NFS_LEFTOVER
)
_MODE = 0o700
_FILE_MODE = 0o640
_OF_OTHERS = stat.S_IROTH | stat.S_IXOTH
_LOCK_BYTES_MAX = 32
_FIRST_BROKER = BrokerId(1)
_KNOWN = "the data directory"


class _Identity(msgspec.Struct, frozen=True):
    """The fields of penstock.json known to this version."""

    format: Annotated[int, msgspec.Meta(ge=1)]
    id: Annotated[str, msgspec.Meta(min_length=1)]
    broker_id: Annotated[int, msgspec.Meta(ge=1)] = 1
    cluster_id: str = ""
    guards: tuple[
        str, ...
    ] = ()  # files that have existed (`node/data_dir/lost_files.py`); earlier versions did not record them
    crc32c: str = ""  # of all other fields, see `_checksum`; earlier versions wrote none


@dataclass(slots=True)
class DataDir:
    """A data directory locked by this process."""

    path: Path
    id: str
    broker_id: BrokerId
    cluster_id: str  # empty: not known yet
    guards: frozenset[str]  # files of `node/data_dir/lost_files.py` that have existed
    _folder: int

    def remember_cluster(self, cluster_id: str) -> None:
        """Persist the cluster id (blocking). Raise OperationalError if another one is set, or on a write error.

        May be called in a thread, by one at a time.
        """
        assert cluster_id, "a broker that has not joined a cluster has nothing to remember"
        if are_different_clusters(cluster_id, self.cluster_id):
            raise OperationalError(
                f"the data directory {self.path} belongs to cluster {self.cluster_id}, and this broker was let into "
                f"cluster {cluster_id}: check the addresses (--cluster, --join), or start with an empty directory "
                "(--data-dir)"
            )
        if self.cluster_id:
            return
        try:
            known = json.loads(read_whole(self.path / _IDENTITY, limits.IDENTITY_BYTES_MAX))
            _write(self.path, {**known, "broker_id": self.broker_id, "cluster_id": cluster_id})
        except (OSError, ValueError) as error:
            text = f"cannot record the cluster id in {self.path / _IDENTITY}: {error}"
            raise OperationalError(text) from error
        self.cluster_id = cluster_id

    def remember_guards(self, names: Iterable[str]) -> None:
        """Record which of these files exist, so that a start can detect a missing one. Raise OSError or ValueError."""
        found = self.guards | {name for name in names if (self.path / name).exists()}
        if found != self.guards:
            known = json.loads(read_whole(self.path / _IDENTITY, limits.IDENTITY_BYTES_MAX))
            _write(self.path, {**known, "broker_id": self.broker_id, "guards": sorted(found)})
            self.guards = found

    def release(self) -> None:
        """Unlock the directory."""
        os.close(self._folder)

    def checked(self, config: BrokerConfig, known: KnownBrokers | None) -> BrokerConfig:
        """Return the settings to start with; raise ConfigError if they do not fit this directory.

        `known`: the brokers of its cluster; None for a new directory.
        """
        if known is None:
            if mistake := _not_as_listed(config):
                raise ConfigError([mistake])
            return config
        others = known.members - {config.broker_id}
        if mistake := self._other_cluster(config, others):
            raise ConfigError([mistake])
        if not others:
            return config
        mistakes = []
        if config.nats is None:
            mistakes.append(
                f"{self} belongs to a cluster of several, with {_named(others)}: all of them use the same NATS, "
                "and the embedded nats-server is for this machine only; set nats (--nats)"
            )
        if not config.voters:
            config = _placed(config, known.addresses.get(config.broker_id, ""), mistakes)
        told = config.advertise or config.listen
        addresses = [parse_address(known.addresses[one]) for one in sorted(others) if _has_address(known, one)]
        if not config.voters and (reach := beyond_reach(told, addresses)) is not None:
            mistakes.append(reach)
        if mistakes:
            raise ConfigError(mistakes)
        return config

    def _other_cluster(self, config: BrokerConfig, others: frozenset[BrokerId]) -> str:
        """Return why the directory belongs to another cluster than the settings; empty if it may be the same."""
        wanted = {voter.broker_id for voter in config.voters} - {config.broker_id}
        cluster = f" ({self.cluster_id})" if self.cluster_id else ""
        what_to_do = "wrong --data-dir? Give it that of this cluster, or an empty one"
        if not others and (wanted or config.join):
            setting, whom = ("--cluster", _named(wanted)) if wanted else ("--join", "others")
            return (
                f"{self} is that of broker {config.broker_id} alone, with a cluster of its own"
                f"{cluster}, and {setting} names {whom}: {what_to_do}; or start it without {setting}, and "
                "have others join it"
            )
        if wanted and not wanted & others:
            return (
                f"{self} belongs to a cluster{cluster} with {_named(others)}, and --cluster names "
                f"{_named(wanted)}: {what_to_do}"
            )
        return ""

    def __str__(self) -> str:
        return f"{_KNOWN} {self.path}"


def take_data_dir(path: Path, broker_id: BrokerId = _FIRST_BROKER) -> DataDir:
    """Create the directory if missing, and lock it for that broker. Raise OperationalError if it cannot be used."""
    folder = hold_folder(path)
    try:
        identity = _identity(path, broker_id)
        return DataDir(path, identity.id, broker_id, identity.cluster_id, frozenset(identity.guards), folder)
    except BaseException:
        os.close(folder)
        raise


def hold_folder(path: Path) -> int:
    """Create the directory if missing, and lock it until the returned descriptor is closed. Raise OperationalError if
    in use.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=_MODE, exist_ok=True)
    except OSError as error:
        raise OperationalError(f"cannot create the data directory {path}: {error.strerror or error}") from error
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        _hold(folder, path)
        if os.fstat(folder).st_mode & _OF_OTHERS:
            _log.warning("others than its owner and group can look into the data directory: chmod o= %s", path)
    except BaseException:
        os.close(folder)
        raise
    return folder


def has_identity(path: Path) -> bool:
    """True if the directory is a broker's data directory."""
    return (path / _IDENTITY).exists()


def check_is_free(path: Path) -> None:
    """Raise OperationalError if the directory contains other files."""
    names = sorted(entry.name for entry in path.iterdir())
    if MACHINE_FILE in names:
        raise OperationalError(
            f"{path} holds the data directories of several brokers of one machine: start them with --brokers"
        )
    if strangers := [name for name in names if name not in _OWN and _FOREIGN.fullmatch(name) is None]:
        shown = ", ".join(strangers[:5])
        raise OperationalError(
            f"{path} has no {_IDENTITY} but holds {shown}: not a data directory of Penstock's; choose an empty one"
        )


def _hold(folder: int, path: Path) -> None:
    lock = path / _LOCK
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(lock)
        by = f" (process {holder})" if holder else ""
        raise OperationalError(
            f"the data directory {path} is in use by another broker{by}; stop that one, or choose another (--data-dir)"
        ) from None
    except OSError as error:
        raise _unusable(path, error) from error
    with contextlib.suppress(OSError):  # a full disk must not prevent a start because of this file
        # Non-blocking: the path may be a FIFO.
        note = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.write(note, f"{os.getpid()}\n".encode())
        finally:
            os.close(note)


def _holder(lock: Path) -> str:
    try:
        return read_whole(lock, _LOCK_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _unusable(path: Path, error: OSError) -> OperationalError:
    text = f"cannot use the data directory {path}: {error.strerror or error}"
    if error.errno == errno.ENOLCK:
        text += "; on NFS the server has to grant locks (lockd, or NFS 4): mount it so, or use a local disk"
    return OperationalError(text)


def _identity(path: Path, broker_id: BrokerId) -> _Identity:
    file = path / _IDENTITY
    try:
        content = read_whole(file, limits.IDENTITY_BYTES_MAX)
    except FileNotFoundError:
        try:
            return _new_identity(path, broker_id)
        except OSError as error:
            raise _unusable(path, error) from error
    except OSError as error:
        raise OperationalError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        identity = msgspec.json.decode(content, type=_Identity)
        checksum = _checksum(json.loads(content)) if identity.crc32c else ""
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise OperationalError(
            f"{file} is not readable as Penstock's ({error}); nothing was touched. Restore it, or choose another "
            "directory with --data-dir"
        ) from None
    if identity.crc32c != checksum:
        raise OperationalError(
            f"{file} is damaged: its checksum is {identity.crc32c}, and does not match its content; nothing was "
            "touched. Restore it, or choose another directory with --data-dir"
        )
    if identity.format > DATA_FORMAT:
        raise OperationalError(
            f"the data directory {path} has format {identity.format}; this Penstock reads up to {DATA_FORMAT}: "
            "upgrade it"
        )
    if identity.broker_id != broker_id:
        raise OperationalError(
            f"the data directory {path} is that of broker {identity.broker_id}, this is broker {broker_id}: start it "
            f"with --id {identity.broker_id}, or give it a directory of its own (--data-dir)"
        )
    return identity


def _new_identity(path: Path, broker_id: BrokerId) -> _Identity:
    check_is_free(path)
    identity = _Identity(DATA_FORMAT, uuid.uuid4().hex, broker_id)
    _write(path, {"format": identity.format, "id": identity.id, "broker_id": broker_id})
    return identity


def _checksum(content: dict[str, object]) -> str:
    known = {name: value for name, value in content.items() if name != "crc32c"}
    return f"{crc32c(json.dumps(known, sort_keys=True).encode()):08x}"


def _write(path: Path, content: dict[str, object]) -> None:
    write_json(path, _IDENTITY, {**content, "crc32c": _checksum(content)})


def write_json(path: Path, name: str, content: dict[str, object]) -> None:
    """Replace a file of the directory atomically and durably; raise OSError; blocking."""
    new = path / f"{name}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(content).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    new.rename(path / name)
    sync_folder(path)


def admin_password_advice(config: BrokerConfig, data_dirs: Iterable[Path]) -> str:
    """Return a log line if a password for the user admin is given although there are users; else empty.

    Raise ConfigError if the user admin is to be created and the password is too short.
    """
    password, origin = config.admin_password, config.origins.get("admin_password")
    if password is None or origin is None:  # generated by the supervisor of several brokers
        return ""
    if any((one / GUARDED_PATH).exists() for one in data_dirs):
        return f"{origin} is ignored: there are users already; `penstock user rotate admin` changes the password"
    if (mistake := password_mistake(password)) is not None:
        raise ConfigError([f"{origin}: {mistake}"])
    return ""


def _not_as_listed(config: BrokerConfig) -> str:
    """Return why the other brokers would not find a new broker; empty if they would."""
    own = next((voter for voter in config.voters if voter.broker_id == config.broker_id), None)
    if own is None or config.advertise is not None:
        return ""
    return (
        f"--listen: this broker would be at {config.listen}, and --cluster says {own}, where the others look for it; "
        f"give --advertise {own.address} if they reach it there, else put {config.listen} into the list. Use "
        "--listen for a broker that has moved with its data directory: this one is new (wrong --data-dir?)"
    )


def _placed(config: BrokerConfig, known: str, mistakes: list[str]) -> BrokerConfig:
    """Return the settings with the broker's registered address, where none is given."""
    if not is_address(known) or config.advertise is not None:
        return config
    address = parse_address(known)
    if "listen" in config.origins:
        return replace(config, advertise=address) if config.listen.is_any else config
    if (mistake := unprotected(address, insecure=config.insecure or config.auth)) is not None:
        mistakes.append(f"{_KNOWN}: {mistake}")
    return replace(config, listen=address)


def _named(brokers: frozenset[BrokerId] | set[BrokerId]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, sorted(brokers)))}"


def is_alone(config: BrokerConfig, known: KnownBrokers | None) -> bool:
    """True if the broker is a cluster of its own, according to settings and data directory."""
    others = frozenset() if known is None else known.members - {config.broker_id}
    return not (config.voters or config.join or others)


def _has_address(known: KnownBrokers, broker_id: BrokerId) -> bool:
    """True if the registered address is valid; older versions did not check it."""
    return is_address(known.addresses.get(broker_id, ""))
