"""A broker's config: parsed once, from four places, into one frozen value.

Rules: a later place overrides an earlier one; within a place nothing is said twice. Every mistake of every place is
reported together, each naming where it came from. A setting that nobody knows is a mistake, with what was probably
meant. Secrets are in no `repr`, no log line and no error.

| place              | written as                    | named in a mistake as      |
|--------------------|-------------------------------|----------------------------|
| 1. defaults        | `settings.SETTINGS`           | `nats_port (default)`      |
| 2. TOML file       | `nats_port = 4222`            | `penstock.toml: nats_port` |
| 3. environment     | `PENSTOCK_NATS_PORT=4222`     | `PENSTOCK_NATS_PORT`       |
| 4. flags           | `--nats-port 4222`            | `--nats-port`              |

An empty environment variable counts as not set.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.base.errors import ConfigError
from penstock.base.ids import BrokerId
from penstock.base.units import format_exact_bytes
from penstock.broker.nats_credentials import Credentials, NatsServer, TlsFiles, parse_nats_urls
from penstock.broker.settings import EMBEDDED, ENVIRONMENT_PREFIX, SETTINGS, Address, Setting, Voter, as_reached

CONFIG_VARIABLE = "PENSTOCK_CONFIG"

# Variables of ours that are not settings of a broker.
_OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "PENSTOCK_SERVER", "PENSTOCK_DEBUG", "PENSTOCK_PLAIN"})
# Kubernetes gives every container such variables for a service named "penstock" or "penstock-…".
_KUBERNETES = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
_CONFIG_FILE_BYTES_MAX = 1024 * 1024
_SECRET_FILE_BYTES_MAX = 64 * 1024

_SECRET_FILES = {"nats_password_file": "nats_password", "nats_token_file": "nats_token"}


class Addresses(NamedTuple):
    """Where a broker that is ready can be reached."""

    client: Address
    nats: str  # URL, without credentials
    data_dir: Path
    cluster: str = ""  # which broker of which; empty: one that is alone


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """How one broker runs. `nats` is None for the embedded nats-server; `origins` says where each setting came from."""

    data_dir: Path
    listen: Address
    advertise: Address | None  # None: what `listen` came to, whatever `voters` say
    insecure: bool
    broker_id: BrokerId
    voters: tuple[Voter, ...]  # empty: this broker is alone, or joins
    join: tuple[Address, ...]
    rack: str | None
    brokers: int | None  # so many under one supervisor: `machine` makes their configs of this one; None: this one alone
    ports: tuple[int, ...]  # theirs, where they do not follow that of `listen`
    pin: bool
    nats: tuple[NatsServer, ...] | None
    nats_port: int
    nats_credentials: Credentials
    nats_tls: TlsFiles
    log_level: str
    log_format: str
    partition_in_flight_bytes: int
    broker_in_flight_bytes: int
    cleaner_rate: int
    catch_up_rate: int
    scrub_rate: int
    scrub_interval: int  # in ms
    disk_threads: int
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    shown: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)


class _Given(NamedTuple):
    value: Any
    origin: str


class _Mistakes(list[str]):
    """What is wrong so far, and which settings have no value for it (so that nothing more is concluded from them)."""

    def __init__(self) -> None:
        super().__init__()
        self.without_value: set[str] = set()


def load(
    *, file: Path | None = None, environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> BrokerConfig:
    """The config of defaults < `file` (or PENSTOCK_CONFIG) < `environment` < `flags`; ConfigError with every mistake.

    A flag that is None was not given.
    """
    mistakes = _Mistakes()
    given: dict[str, _Given] = {}
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is not None:
        given |= _from_file(file, mistakes)
    given |= _from_environment(environment, mistakes)
    for name, value in (flags or {}).items():
        if value is not None:
            _take(given, SETTINGS[name], value, SETTINGS[name].flag, mistakes)
    _check_combinations(given, mistakes)
    config = _build(given, mistakes)
    if config is None or mistakes:
        raise ConfigError(mistakes)
    return config


def _take(given: dict[str, _Given], setting: Setting, raw: object, origin: str, mistakes: _Mistakes) -> None:
    try:
        given[setting.name] = _Given(setting.parse(raw), origin)
    except ValueError as error:
        mistakes.append(f"{origin}: {error}")
        mistakes.without_value.add(setting.name)


def _from_file(file: Path, mistakes: _Mistakes) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    try:
        with file.open("rb") as opened:
            data = opened.read(_CONFIG_FILE_BYTES_MAX + 1)
        if len(data) > _CONFIG_FILE_BYTES_MAX:
            raise ValueError(f"larger than {_CONFIG_FILE_BYTES_MAX} bytes: hardly a config file")
        content = tomllib.loads(data.decode())
    except OSError as error:
        mistakes.append(f"{file}: cannot be read: {error.strerror or error}")
        return given
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError among them
        mistakes.append(f"{file}: is not valid TOML: {error}")
        return given
    for name, value in content.items():
        setting = SETTINGS.get(name)
        if setting is None or isinstance(value, dict):
            mistakes += _unknown_in_file(file, name, value)
            continue
        _take(given, setting, value, f"{file}: {name}", mistakes)
        if setting.names_file and name in given:
            # Not from the working directory: the file means the same wherever the broker is started.
            given[name] = _Given(file.parent / given[name].value, given[name].origin)
    return given


def _unknown_in_file(file: Path, name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        # A table such as [nats]: settings are flat, so say which was meant for each of its keys.
        return [f"{file}: {name}.{key}: no such setting{_meant(f'{name}_{key}', SETTINGS)}" for key in value] or [
            f"{file}: [{name}]: there are no tables; settings stand at the top"
        ]
    return [f"{file}: {name}: no such setting{_meant(name, SETTINGS)}"]


def _from_environment(environment: Mapping[str, str], mistakes: _Mistakes) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    for variable in sorted(environment):
        setting = by_variable.get(variable)
        if setting is not None and environment[variable]:
            _take(given, setting, environment[variable], variable, mistakes)
        elif (
            setting is None
            and variable.startswith(ENVIRONMENT_PREFIX)
            and variable not in _OTHER_VARIABLES
            and not _KUBERNETES.fullmatch(variable)
        ):
            mistakes.append(f"{variable}: no such setting{_meant(variable, (*by_variable, *_OTHER_VARIABLES))}")
    return given


def _meant(name: str, known: Iterable[str]) -> str:
    folded = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _check_combinations(given: dict[str, _Given], mistakes: _Mistakes) -> None:
    """Mistakes of settings that do not go together; reads the files of secrets."""
    for file_name, name in _SECRET_FILES.items():
        if file_name not in given:
            continue
        if name in given:
            mistakes.append(f"{given[file_name].origin}: {name} is set too (by {given[name].origin}); set one of them")
            continue
        origin = given[file_name].origin
        secret = _read_secret(given[file_name].value, origin, mistakes)
        # Kept when it cannot be read too: the user beside it does not lack its password then.
        given[name] = _Given(secret or "?", origin)
    _check_cluster(given, mistakes)
    mistakes += [
        f"{given[name].origin}: is for several brokers on one machine; set brokers (--brokers)"
        for name in ("ports", "pin")
        if name in given and given[name].value and "brokers" not in given and "brokers" not in mistakes.without_value
    ]
    if (mistake := unprotected(_value(given, "listen"), insecure=_value(given, "insecure"))) is not None:
        mistakes.append(f"{_origin(given, 'listen')}: {mistake}")
    if _value(given, "partition_in_flight_bytes") > _value(given, "broker_in_flight_bytes"):
        one, all_streams = (_origin(given, name) for name in ("partition_in_flight_bytes", "broker_in_flight_bytes"))
        mistakes.append(f"{one}: one stream gets more than all together (broker_in_flight_bytes, see {all_streams})")
    if _value(given, "nats"):
        if "nats_port" in given:
            origin = given["nats_port"].origin
            mistakes.append(f"{origin}: is the port of the embedded nats-server, which {given['nats'].origin} replaces")
        return
    if "nats" in mistakes.without_value:
        return
    mistakes += [
        f"{at.origin}: the embedded nats-server asks for none; set nats to the server that it is for"
        for name, at in given.items()
        if name.startswith("nats_") and name != "nats_port" and name not in _SECRET_FILES.values()
    ]
    mistakes += [
        f"{given[name].origin}: the embedded nats-server asks for none; set nats to the server that it is for"
        for file_name, name in _SECRET_FILES.items()
        if name in given and file_name not in given
    ]


def unprotected(listen: Address, *, insecure: bool) -> str | None:
    """Why a broker does not listen there, or None."""
    if listen.is_loopback or insecure:
        return None
    return (
        f"{listen} can be reached from other machines, and there is no authentication: "
        "whoever reaches it may read, write and delete everything. Listen on 127.0.0.1, or set insecure = true "
        "(--insecure) if you trust the network in front of it"
    )


def beyond_reach(told: Address, others: Iterable[Address]) -> str | None:
    """Why brokers at the addresses `others` cannot use the one that they are told, or None."""
    elsewhere = [other for other in others if not other.is_loopback]
    if not elsewhere or not (told.is_loopback or told.is_any):
        return None
    return (
        f"the others would be told that this broker is at {told}, where they, at {elsewhere[0]}, do not find it: "
        "listen on an address of this machine that they reach (--listen), or name that (--advertise)"
    )


def _check_cluster(given: dict[str, _Given], mistakes: _Mistakes) -> None:
    """Mistakes about who is in the cluster; where this broker listens, if only the cluster says so."""
    cluster, join = given.get("cluster"), given.get("join")
    if cluster is not None and join is not None:
        mistakes.append(f"{join.origin}: the brokers of {cluster.origin} begin a cluster, others join one; set one")
        return
    of_several = join if join is not None else cluster if cluster is not None and len(cluster.value) > 1 else None
    if of_several is not None and "id" not in given and "id" not in mistakes.without_value:
        mistakes.append(f"{of_several.origin}: which broker of the cluster is this one? Set id (--id)")
        return
    if of_several is not None and not _value(given, "nats") and "nats" not in mistakes.without_value:
        mistakes.append(
            f"{of_several.origin}: every broker of a cluster uses the same NATS, and the embedded nats-server is for "
            "this machine only; set nats (--nats)"
        )
    if join is not None and not any(one.is_loopback for one in join.value):
        _check_reach(given, join.value, mistakes)
    if cluster is None or "id" in mistakes.without_value:
        return
    broker_id = _value(given, "id")
    own = next((voter for voter in cluster.value if voter.broker_id == broker_id), None)
    if own is None:
        known = ", ".join(str(voter.broker_id) for voter in cluster.value)
        mistakes.append(
            f"{cluster.origin}: this broker, {broker_id} ({_origin(given, 'id')}), is none of {known}; a broker that "
            "comes later is started with --join"
        )
        return
    if "listen" not in given and "listen" not in mistakes.without_value:
        given["listen"] = _Given(own.address, cluster.origin)
    elif not _value(given, "listen").port:
        mistakes.append(f"{_origin(given, 'listen')}: the others look for this broker at {own.address}: not port 0")
    says_where = "advertise" in given or "advertise" in mistakes.without_value
    if not says_where and not _is_elsewhere(_value(given, "listen"), own.address):
        given["advertise"] = _Given(own.address, cluster.origin)
    others = [voter for voter in cluster.value if voter is not own]
    for voter in others:
        if "advertise" in given and as_reached(given["advertise"].value) == as_reached(voter.address):
            mistakes.append(
                f"{given['advertise'].origin}: {voter.address} is the address of broker {voter.broker_id} "
                f"({cluster.origin}): name the one at which the others reach this broker, {broker_id}"
            )
    _check_reach(given, [voter.address for voter in others], mistakes)


def _is_elsewhere(listen: Address, listed: Address) -> bool:
    """Whether who listens there is not at the address of the list, as far as that can be told without asking."""
    if listen.is_any or as_reached(listen) == as_reached(listed):
        return False
    return listen.port != listed.port or (listen.is_literal and listed.is_literal)  # a name may stand for anything


def _check_reach(given: Mapping[str, _Given], others: Iterable[Address], mistakes: _Mistakes) -> None:
    name = "advertise" if "advertise" in given else "listen"
    if name not in mistakes.without_value and (mistake := beyond_reach(_value(given, name), others)) is not None:
        mistakes.append(f"{_origin(given, name)}: {mistake}")


def _read_secret(file: Path, origin: str, mistakes: _Mistakes) -> str | None:
    try:
        with file.open("rb") as opened:
            text = opened.read(_SECRET_FILE_BYTES_MAX).decode().rstrip("\r\n")
    except OSError as error:
        mistakes.append(f"{origin}: cannot read {file}: {error.strerror or error}")
        return None
    except UnicodeDecodeError:
        mistakes.append(f"{origin}: {file} does not hold text")
        return None
    if not text:
        mistakes.append(f"{origin}: {file} is empty")
        return None
    return text


def _value(given: Mapping[str, _Given], name: str) -> Any:
    at = given.get(name)
    return SETTINGS[name].default if at is None else at.value


def _origin(given: Mapping[str, _Given], name: str) -> str:
    at = given.get(name)
    return f"{name} (default)" if at is None else at.origin


def _build(given: Mapping[str, _Given], mistakes: _Mistakes) -> BrokerConfig | None:
    """The config, or None where a part of it cannot be made."""
    value = {name: _value(given, name) for name in SETTINGS}
    servers = None
    if value["nats"]:
        try:
            servers = parse_nats_urls(",".join(value["nats"]))
        except ConfigError as error:
            mistakes += [f"{given['nats'].origin}: {text.removeprefix('nats: ')}" for text in error.mistakes]
    credentials = Credentials(
        user=value["nats_user"],
        password=value["nats_password"],
        token=value["nats_token"],
        nkey_file=value["nats_nkey_seed"],
        creds_file=value["nats_creds"],
    )
    tls = TlsFiles(ca_file=value["nats_tls_ca"], cert_file=value["nats_tls_cert"], key_file=value["nats_tls_key"])
    if value["nats"]:
        mistakes += _with_origins(given, credentials.mistakes(), "nats_", but_not="nats_tls_")
        mistakes += _with_origins(given, tls.mistakes(), "nats_tls_")
    if mistakes:
        return None
    return BrokerConfig(
        data_dir=value["data_dir"],
        listen=value["listen"],
        advertise=value["advertise"],
        insecure=value["insecure"],
        broker_id=value["id"],
        voters=value["cluster"] or (),
        join=value["join"] or (),
        rack=value["rack"],
        brokers=value["brokers"],
        ports=value["ports"] or (),
        pin=value["pin"],
        nats=servers,
        nats_port=value["nats_port"],
        nats_credentials=credentials,
        nats_tls=tls,
        log_level=value["log_level"],
        log_format=value["log_format"],
        partition_in_flight_bytes=value["partition_in_flight_bytes"],
        broker_in_flight_bytes=value["broker_in_flight_bytes"],
        cleaner_rate=value["cleaner_rate"],
        catch_up_rate=value["catch_up_rate"],
        scrub_rate=value["scrub_rate"],
        scrub_interval=value["scrub_interval"],
        disk_threads=value["disk_threads"],
        origins=MappingProxyType({name: at.origin for name, at in given.items()}),
        shown=MappingProxyType(_shown(value, servers)),
    )


def _shown(value: Mapping[str, Any], servers: tuple[NatsServer, ...] | None) -> dict[str, Any]:
    """The settings as they may be shown: of a secret only whether it is set."""
    without_secrets = {name: "***" if SETTINGS[name].secret and one is not None else one for name, one in value.items()}
    for name in ("cluster", "join"):
        if value[name] is not None:
            without_secrets[name] = [str(one) for one in value[name]]
    return {**without_secrets, "nats": [str(server) for server in servers or ()] or EMBEDDED}


def _with_origins(given: Mapping[str, _Given], texts: list[str], prefix: str, but_not: str = " ") -> list[str]:
    """`texts`, each followed by the places that set what it may be about."""
    places = {
        at.origin: None
        for name, at in given.items()
        if name.startswith(prefix) and not name.startswith(but_not) and name != "nats_port"
    }
    return [f"{text} (see {', '.join(places)})" for text in texts]


def to_toml(config: BrokerConfig) -> str:
    """The effective config as a TOML file, each setting with where it came from; secrets are only mentioned."""
    lines = []
    for setting in SETTINGS.values():
        value = config.shown.get(setting.name)
        origin = config.origins.get(setting.name)
        if setting.secret:
            if value is not None and f"{setting.name}_file" not in config.origins:
                lines.append(f"# {setting.name} is set, and not shown  (from {origin})")
        elif value is None or (setting.name == "nats_port" and config.nats is not None):
            lines.append(f"# {setting.name} is not set")
        else:
            place = f"from {origin}" if origin else "default"
            lines.append(f"{setting.name} = {_toml_value(setting, value)}  # {place}")
    return "\n".join(lines) + "\n"


def _toml_value(setting: Setting, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if setting.metavar == "SIZE":
        return f'"{format_exact_bytes(value)}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_toml_text(part) for part in value)}]"
    return _toml_text(str(value))


def _toml_text(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char for char in text) + '"'
