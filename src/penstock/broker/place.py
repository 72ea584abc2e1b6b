"""The settings of a start, held against what the data directory knows of its cluster.

Rules: a data directory belongs to one cluster for good. What is not said comes from the directory; what is said and
contradicts it ends the start, before anything is changed and before anybody is told. All mistakes are told together.

| the directory is           | with                         | then                                              |
|----------------------------|------------------------------|---------------------------------------------------|
| new                        | `listen` not as in `cluster` | refused: the others would look for it elsewhere   |
| new                        | anything else                | as the settings say                               |
| of a broker that was alone | `cluster` of several, `join` | refused: it would go on alone                     |
| of several                 | `cluster` of others only     | refused                                           |
| of several                 | no `nats`                    | refused: a NATS of its own reaches no publisher   |
| of several                 | no `listen`, no `cluster`    | listens where the others know it                  |
| of several                 | `listen` not as in `cluster` | has moved there                                   |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from penstock.access.users import password_mistake
from penstock.base.addresses import is_address, parse_address
from penstock.base.errors import ConfigError
from penstock.base.ids import BrokerId
from penstock.broker.config import BrokerConfig
from penstock.broker.config_checks import beyond_reach, unprotected
from penstock.broker.data_dir import DataDir
from penstock.node.guarded import GUARDED_PATH
from penstock.node.known import Known

_KNOWN = "the data directory"


def settled(config: BrokerConfig, data_dir: DataDir, known: Known | None) -> BrokerConfig:
    """The settings to start with. ConfigError: they are not for this directory."""
    if known is None:
        if mistake := _not_as_listed(config):
            raise ConfigError([mistake])
        return config
    others = known.members - {config.broker_id}
    if mistake := _other_cluster(config, data_dir, others):
        raise ConfigError([mistake])
    if not others:
        return config
    mistakes = []
    if config.nats is None:
        mistakes.append(
            f"{_told(data_dir)} belongs to a cluster of several, with {_named(others)}: all of them use the same NATS, "
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


def admin_password_advice(config: BrokerConfig, data_dirs: Iterable[Path]) -> str:
    """What to log where the password of the user admin was given, and there are users; empty: nothing.

    ConfigError: the user admin is to be made, and the password is too short.
    """
    password, origin = config.admin_password, config.origins.get("admin_password")
    if password is None or origin is None:  # the supervisor of several brokers has drawn one
        return ""
    if any((one / GUARDED_PATH).exists() for one in data_dirs):
        return f"{origin} is ignored: there are users already; `penstock user rotate admin` changes the password"
    if (mistake := password_mistake(password)) is not None:
        raise ConfigError([f"{origin}: {mistake}"])
    return ""


def _other_cluster(config: BrokerConfig, data_dir: DataDir, others: frozenset[BrokerId]) -> str:
    """What makes the directory one of another cluster than the settings mean; empty if it may be the same."""
    wanted = {voter.broker_id for voter in config.voters} - {config.broker_id}
    what_to_do = "wrong --data-dir? Give it that of this cluster, or an empty one"
    if not others and (wanted or config.join):
        setting, whom = ("--cluster", _named(wanted)) if wanted else ("--join", "others")
        return (
            f"{_told(data_dir)} is that of broker {config.broker_id} alone, with a cluster of its own"
            f"{_cluster(data_dir)}, and {setting} names {whom}: {what_to_do}; or start it without {setting}, and "
            "have others join it"
        )
    if wanted and not wanted & others:
        return (
            f"{_told(data_dir)} belongs to a cluster{_cluster(data_dir)} with {_named(others)}, and --cluster names "
            f"{_named(wanted)}: {what_to_do}"
        )
    return ""


def _not_as_listed(config: BrokerConfig) -> str:
    """What makes a new broker one that the others do not find; empty if they do."""
    own = next((voter for voter in config.voters if voter.broker_id == config.broker_id), None)
    if own is None or config.advertise is not None:
        return ""
    return (
        f"--listen: this broker would be at {config.listen}, and --cluster says {own}, where the others look for it; "
        f"give --advertise {own.address} if they reach it there, else put {config.listen} into the list. A broker that "
        "has moved says so with --listen, and has its data directory: this one is new (wrong --data-dir?)"
    )


def _placed(config: BrokerConfig, known: str, mistakes: list[str]) -> BrokerConfig:
    """The settings with the address that the others know, where nothing is said of it."""
    if not is_address(known) or config.advertise is not None:
        return config
    address = parse_address(known)
    if "listen" in config.origins:
        return replace(config, advertise=address) if config.listen.is_any else config
    if (mistake := unprotected(address, insecure=config.insecure or config.auth)) is not None:
        mistakes.append(f"{_KNOWN}: {mistake}")
    return replace(config, listen=address)


def _told(data_dir: DataDir) -> str:
    return f"{_KNOWN} {data_dir.path}"


def _cluster(data_dir: DataDir) -> str:
    return f" ({data_dir.cluster_id})" if data_dir.cluster_id else ""


def _named(brokers: frozenset[BrokerId] | set[BrokerId]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, sorted(brokers)))}"


def is_alone(config: BrokerConfig, known: Known | None) -> bool:
    """Whether the broker is a cluster of its own, as far as settings and data directory say."""
    others = frozenset() if known is None else known.members - {config.broker_id}
    return not (config.voters or config.join or others)


def _has_address(known: Known, broker_id: BrokerId) -> bool:
    """Whether it can be reached at what was registered: what an older version took is not looked at twice."""
    return is_address(known.addresses.get(broker_id, ""))
