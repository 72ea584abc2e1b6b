"""The brokers of one machine under a supervisor: ids, addresses, and what their common folder records.

Rules: the supervisor's settings are those of its first broker; every other broker has the next id, the next port, a
data directory of its own, and all else the same, including the rack. The initial voters are decided by the first start,
and recorded: later brokers join. A smaller number of brokers is refused, because the data of the missing ones would be
lost. All mistakes are reported together, before anything is started.

| settings                     | initial voters of the cluster           | joining brokers              |
|------------------------------|-----------------------------------------|------------------------------|
| neither `cluster` nor `join` | the first 1, 3 or 5 of these brokers    | the others, through those    |
| `cluster`                    | those of the list; `id` is one of them  | the others, through those    |
| `join`                       | those of the existing cluster           | all of them                  |

    DIR/brokers.json   {"format": 1, "first_id": 1, "ports": [7422, 7423, 7424], "voters": [1, 2, 3]}
    DIR/broker-1       the data directory of broker 1, and so on

An odd number of voters tolerates as many failures as the next even one. With `cluster`, every machine starts with one
voter, so that the loss of a machine is the loss of one voter.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import ConfigError, OperationalError
from penstock.base.ids import BrokerId
from penstock.broker.config.config import BrokerConfig
from penstock.broker.config.data_dir import MACHINE_FILE, check_is_free, has_identity, hold_folder, write_json
from penstock.broker.config.settings import BROKER_ID_MAX, RACK_CHARS_MAX, Voter, as_reached
from penstock.vfs.real import read_whole

_FORMAT = 1
_PORT_MAX = 65_535
_Port = Annotated[int, msgspec.Meta(ge=1, le=_PORT_MAX)]


class MachineRecord(msgspec.Struct, frozen=True):
    """Content of brokers.json."""

    format: Annotated[int, msgspec.Meta(ge=1)]
    first_id: Annotated[int, msgspec.Meta(ge=1, le=BROKER_ID_MAX)]
    ports: Annotated[tuple[_Port, ...], msgspec.Meta(min_length=1)]
    voters: tuple[int, ...] = ()  # those of these brokers


@dataclass(frozen=True, slots=True)
class MachineDir:
    """The folder of a machine's brokers, locked by this process."""

    path: Path
    remembered: MachineRecord | None  # None: the folder is new
    _folder: int

    def remember(self, remembered: MachineRecord) -> None:
        """Write brokers.json if it changes (blocking); raise OperationalError."""
        if remembered == self.remembered:
            return
        try:
            write_json(self.path, MACHINE_FILE, msgspec.to_builtins(remembered))
        except OSError as error:
            raise OperationalError(f"cannot write {self.path / MACHINE_FILE}: {error.strerror or error}") from error

    def release(self) -> None:
        """Unlock the folder."""
        os.close(self._folder)


def take_machine_dir(path: Path) -> MachineDir:
    """Create the folder if missing, and lock it. Raise OperationalError if it cannot be used."""
    folder = hold_folder(path)
    try:
        return MachineDir(path, _remembered(path), folder)
    except BaseException:
        os.close(folder)
        raise


def _remembered(path: Path) -> MachineRecord | None:
    if has_identity(path):
        raise OperationalError(
            f"{path} is the data directory of one broker: start it without --brokers, or give these a folder of their "
            "own (--data-dir) and have them join it"
        )
    file = path / MACHINE_FILE
    try:
        content = read_whole(file, limits.IDENTITY_BYTES_MAX)
    except FileNotFoundError:
        check_is_free(path)
        return None
    except OSError as error:
        raise OperationalError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        remembered = msgspec.json.decode(content, type=MachineRecord)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise OperationalError(
            f"{file} is not readable as Penstock's ({error}); nothing was touched. Restore it: the data directories of "
            "the brokers are beside it"
        ) from None
    if remembered.format > _FORMAT:
        raise OperationalError(
            f"{file} has format {remembered.format}; this Penstock reads up to {_FORMAT}: upgrade it"
        )
    return remembered


def planned(config: BrokerConfig, known: MachineRecord | None) -> tuple[list[BrokerConfig], MachineRecord]:
    """Return the config of each broker, and what to record about them. Raise ConfigError with every mistake.

    `nats` of the configs is that of `config`.
    """
    count = config.brokers or 1
    mistakes = _changed(config, count, known)
    ids = [BrokerId(config.broker_id + place) for place in range(count)]
    if ids[-1] > BROKER_ID_MAX:
        mistakes.append(f"--brokers: the last of {count} brokers would have the id {ids[-1]}")
    if config.listen.is_any and config.advertise is None and (count > 1 or config.voters or config.join):
        mistakes.append(
            f"--listen: {config.listen} means every address of this machine, and brokers cannot find "
            "each other at it: name one (--listen), or announce one (--advertise)"
        )
    ports = _ports(config, count, known, mistakes)
    if mistakes:
        raise ConfigError(mistakes)
    mistakes += _http_mistakes(config, count, ports)
    told = [_told(config, ports, place) for place in range(count)]
    mistakes += _taken(config, ids, told)
    if mistakes:
        raise ConfigError(mistakes)
    if known is not None:
        own_voters = known.voters
    elif config.voters or config.join:
        own_voters = ()
    else:
        own_voters = tuple(ids[: _odd(min(count, limits.RAFT_VOTERS_MAX))])
    voters = config.voters or tuple(Voter(one, told[one - ids[0]]) for one in map(BrokerId, own_voters))
    configs = [_of_one(config, ids[place], Address(config.listen.host, ports[place]), told[place], voters)
               for place in range(count)]  # fmt: skip
    return configs, MachineRecord(_FORMAT, ids[0], tuple(ports), own_voters)


def _odd(count: int) -> int:
    return count - (count + 1) % 2


def _changed(config: BrokerConfig, count: int, known: MachineRecord | None) -> list[str]:
    """Return the mistakes that contradict an earlier start."""
    if known is None:
        return []
    mistakes = []
    if config.broker_id != known.first_id:
        mistakes.append(
            f"--id: the first broker of {config.data_dir} is {known.first_id}, not {config.broker_id}: "
            "wrong --data-dir?"
        )
    if count < len(known.ports):
        last = known.first_id + len(known.ports) - 1
        mistakes.append(
            f"--brokers: {config.data_dir} holds brokers {known.first_id} to {last}, and {count} are fewer: what the "
            f"others hold would be missing, and a broker cannot be removed from its cluster; give --brokers "
            f"{len(known.ports)}"
        )
    return mistakes


def _ports(config: BrokerConfig, count: int, known: MachineRecord | None, mistakes: list[str]) -> list[int]:
    if config.ports:
        if len(config.ports) != count:
            mistakes.append(f"--ports: {len(config.ports)} ports for {count} brokers")
        return list(config.ports)
    if config.listen.port:
        ports = list(range(config.listen.port, config.listen.port + count))
        if ports[-1] > _PORT_MAX:
            mistakes.append(f"--listen: the last of {count} brokers would have the port {ports[-1]}")
        return ports
    ports = [] if known is None else list(known.ports)
    return [*ports, *_free_ports(config.listen.host, count - len(ports), mistakes)]


def _free_ports(host: str, count: int, mistakes: list[str]) -> list[int]:
    """Return free ports: these brokers must know each other's ports before they start."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server((host, 0), family=family)) for _ in range(count)]
            return [one.getsockname()[1] for one in sockets]
    except OSError as error:
        mistakes.append(f"--listen: no port of {host} can be had: {error.strerror or error}")
        return []


def _told(config: BrokerConfig, ports: Sequence[int], place: int) -> Address:
    """Return the address at which the others reach the broker with that index."""
    if config.advertise is None:
        return Address(config.listen.host, ports[place])
    # The same distance from the first broker's port as for `listen`.
    return Address(config.advertise.host, config.advertise.port + ports[place] - ports[0])


def _taken(config: BrokerConfig, ids: Sequence[BrokerId], told: Sequence[Address]) -> list[str]:
    """Return conflicts of these brokers with the others in the list."""
    mistakes = [
        f"--advertise: the broker at {one.host} would be told to be at port {one.port}"
        for one in told
        if not 0 < one.port <= _PORT_MAX
    ]
    for voter in config.voters:
        if voter.broker_id == config.broker_id:
            continue
        if voter.broker_id in ids:
            mistakes.append(
                f"--cluster: broker {voter.broker_id} would be one of the {len(ids)} of this machine, which are "
                f"{ids[0]} to {ids[-1]}: name one of each machine, with ids that leave room for its others, as "
                "1@a:7422,101@b:7422,201@c:7422"
            )
        if as_reached(voter.address) in map(as_reached, told):
            mistakes.append(
                f"--cluster: {voter.address} is the address of one of the {len(ids)} brokers of this machine"
            )
    return mistakes


def _of_one(
    config: BrokerConfig, broker_id: BrokerId, listen: Address, told: Address, voters: tuple[Voter, ...]
) -> BrokerConfig:
    is_voter = any(voter.broker_id == broker_id for voter in voters)
    return replace(
        config,
        data_dir=config.data_dir / folder_of(broker_id),
        listen=listen,
        http=_http(config, broker_id),
        advertise=told,  # overrides another address recorded in the data directory
        broker_id=broker_id,
        voters=voters if is_voter else (),
        join=() if is_voter else config.join or tuple(voter.address for voter in voters),
        rack=config.rack or socket.gethostname()[:RACK_CHARS_MAX] or None,
        brokers=None,
        ports=(),
        pin=False,
        origins=MappingProxyType({**config.origins, "id": "--id", "listen": "--listen"}),
        shown=MappingProxyType({}),
    )


def _http_mistakes(config: BrokerConfig, count: int, ports: Sequence[int]) -> list[str]:
    """Return conflicts of a configured HTTP port. A default port falls back by itself."""
    if config.http is None or not config.http.port or "http" not in config.origins:
        return []
    last = config.http.port + count - 1
    if last > _PORT_MAX:
        return [f"--http: the last of {count} brokers would have the port {last}"]
    both = sorted(set(ports) & set(range(config.http.port, last + 1)))
    return [f"--http: port {port} is that of a broker itself (--listen)" for port in both]


def _http(config: BrokerConfig, broker_id: int) -> Address | None:
    """Return a broker's HTTP address: its port differs from the first broker's as its id does."""
    if config.http is None or not config.http.port:
        return config.http
    return Address(config.http.host, config.http.port + broker_id - config.broker_id)


def folder_of(broker_id: int) -> str:
    """Return the name of a broker's data directory, also used in the log."""
    return f"broker-{broker_id}"
