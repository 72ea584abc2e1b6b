"""A broker's config: parsed once, from four places, into one frozen value.

Rules: a later place overrides an earlier one; within a place a setting has one value. All mistakes of all places are
reported together, each with its origin. An unknown setting is a mistake, with a suggestion. Secrets are in no `repr`,
no log line and no error.

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
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.base.addresses import Address
from penstock.base.errors import ConfigError
from penstock.base.ids import BrokerId
from penstock.base.text_files import text_of, value_of_variable
from penstock.base.units import format_exact_bytes
from penstock.broker.config.checks import NATS_PLACES, check_combinations, exposed_secrets
from penstock.broker.config.settings import (
    EMBEDDED,
    ENVIRONMENT_PREFIX,
    OFF,
    SETTINGS,
    GivenSettings,
    Setting,
    SourcedValue,
    Voter,
)
from penstock.broker.config.tls_settings import BrokerTls
from penstock.broker.security.nats_credentials import NatsCredentials, NatsServer, TlsFiles, parse_nats_urls

CONFIG_VARIABLE = "PENSTOCK_CONFIG"
_OF_CLIENTS_TOO = frozenset({"tls_ca", "tls_cert", "tls_key"})

# PENSTOCK_ variables that are not settings of a broker.
_OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        "PENSTOCK_SERVER",
        "PENSTOCK_CREDENTIALS",
        "PENSTOCK_TOKEN",
        "PENSTOCK_USER",
        "PENSTOCK_PASSWORD",
        "PENSTOCK_DEBUG",
        "PENSTOCK_PLAIN",
    }
)
# Kubernetes gives every container such variables for a service named "penstock" or "penstock-…".
_KUBERNETES = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
# Values of such variables whose name is also a setting's: PENSTOCK_NATS_PORT for a service "penstock-nats".
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://\S*")
_CONFIG_FILE_BYTES_MAX = 1024 * 1024


class Addresses(NamedTuple):
    """Addresses of a broker that is ready."""

    client: Address
    nats: str  # URL, without credentials
    data_dir: Path
    cluster: str = ""  # id and brokers; empty for a single broker
    http: Address | None = None  # of metrics and health checks


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Config of one broker. `nats` is None for the embedded nats-server; `origins` has the place of each setting."""

    data_dir: Path
    listen: Address
    advertise: Address | None  # None: the bound address of `listen`, regardless of `voters`
    insecure: bool
    auth: bool  # authentication is on from the first start
    broker_id: BrokerId
    voters: tuple[Voter, ...]  # empty: this broker is alone, or joins
    join: tuple[Address, ...]
    rack: str | None
    # number of brokers under one supervisor, whose configs `machine` derives from this one; None: a single broker
    brokers: int | None
    ports: tuple[int, ...]  # their ports, if not consecutive from that of `listen`
    pin: bool
    encryption_keys: str | None = field(repr=False)
    encryption_keys_file: Path | None
    encrypt_internal_streams: bool
    nats: tuple[NatsServer, ...] | None
    nats_port: int
    nats_monitor_port: int | None
    nats_ignore_announced: bool
    jetstream_api: str  # `off`, `domain` or `auto`
    jetstream_domain: str
    nats_credentials: NatsCredentials
    nats_tls: TlsFiles
    tls: BrokerTls  # for clients and brokers
    http: Address | None  # None: off
    http_token: str | None = field(repr=False)
    http_tls: bool
    otlp_endpoint: str | None
    log_level: str
    log_format: str
    partition_in_flight_bytes: int
    broker_in_flight_bytes: int
    cleaner_rate: int
    catch_up_rate: int
    scrub_rate: int
    scrub_interval: int  # in ms
    disk_threads: int
    sync_by: str
    admin_password: str | None = field(default=None, repr=False)
    cluster_secret: str | None = field(default=None, repr=False)
    allow_open_secrets: bool = False
    exposed: tuple[str, ...] = ()  # warnings at the start: secrets that other users of this machine may read
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)
    shown: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)


def load(
    *, file: Path | None = None, environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> BrokerConfig:
    """Return the config: defaults < `file` (or PENSTOCK_CONFIG) < `environment` < `flags`.

    Raise ConfigError with every mistake. A flag that is None was not given.
    """
    given = _given(file, environment, flags or {})
    check_combinations(given)
    config = _build(given, exposed_secrets(given))
    if config is None or given.mistakes:
        raise ConfigError(given.mistakes)
    return config


class HttpPorts(NamedTuple):
    """HTTP addresses of a broker, or of all brokers of a machine; empty: off."""

    addresses: tuple[Address, ...]
    speaks_tls: bool


def load_http(
    *, file: Path | None = None, environment: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> HttpPorts:
    """Return only the HTTP settings of `load`: the caller (a health probe) may lack the other settings.

    An unreadable file is ignored if flags or variables give the address. Raise ConfigError for mistakes in these
    settings.
    """
    wanted = ("http", "http_tls", "brokers")
    given = _given(file, environment, flags or {})
    if given.without_value.intersection(wanted):
        mistakes = given.mistakes
        others = {name: value for name, value in environment.items() if name != CONFIG_VARIABLE}
        given = _given(None, others, flags or {})
        if "http" not in given or given.without_value.intersection(wanted):
            raise ConfigError(mistakes)
    http = given.value("http")
    count = given.value("brokers") or 1
    addresses = () if http == OFF else tuple(Address(http.host, http.port + number) for number in range(count))
    return HttpPorts(addresses, given.value("http_tls"))


def knows_broker(*, file: Path | None = None, environment: Mapping[str, str]) -> bool:
    """True if a config file, or a variable of a broker setting, exists on this machine.

    Variables that clients use as well (PENSTOCK_TLS_CA etc.) do not count.
    """
    if file is not None or environment.get(CONFIG_VARIABLE):
        return True
    variables = (one.variable for one in SETTINGS.values() if one.name not in _OF_CLIENTS_TOO)
    return any((value := environment.get(one)) and not _is_service_link(one, value) for one in variables)


def _given(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> GivenSettings:
    given = GivenSettings()
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is not None:
        _take_file(given, file)
    _take_environment(given, environment)
    for name, value in flags.items():
        if value is not None:
            given.take(SETTINGS[name], value, SETTINGS[name].flag)
    return given


def _take_file(given: GivenSettings, file: Path) -> None:
    try:
        with file.open("rb") as opened:
            data = opened.read(_CONFIG_FILE_BYTES_MAX + 1)
        if len(data) > _CONFIG_FILE_BYTES_MAX:
            raise ValueError(f"larger than {_CONFIG_FILE_BYTES_MAX} bytes: hardly a config file")
        content = tomllib.loads(text_of(data))
        given.file = file
    except OSError as error:
        given.mistakes.append(f"{file}: cannot be read: {error.strerror or error}")
        given.without_value.update(SETTINGS)  # the file may set any of them
        return
    except (ValueError, RecursionError) as error:  # includes TOMLDecodeError
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        given.mistakes.append(f"{file}: is not valid TOML: {reason}")
        given.without_value.update(SETTINGS)
        return
    for name, value in content.items():
        setting = SETTINGS.get(name)
        if setting is None or isinstance(value, dict):
            given.mistakes += _unknown_in_file(file, name, value)
            continue
        given.take(setting, value, f"{file}: {name}")
        if setting.names_file and name in given:
            # Relative to the file, not to the working directory, so that it works wherever the broker is started.
            given[name] = SourcedValue(file.parent / given[name].value, given[name].origin)


def _unknown_in_file(file: Path, name: str, value: object) -> list[str]:
    if isinstance(value, dict):
        # A table such as [nats]: settings are flat, so suggest one for each of its keys.
        return [f"{file}: {name}.{key}: no such setting{_meant(f'{name}_{key}', SETTINGS)}" for key in value] or [
            f"{file}: [{name}]: there are no tables; settings belong at the top"
        ]
    return [f"{file}: {name}: no such setting{_meant(name, SETTINGS)}"]


def _take_environment(given: GivenSettings, environment: Mapping[str, str]) -> None:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    for variable in sorted(environment):
        setting = by_variable.get(variable)
        if _is_service_link(variable, environment[variable]):
            continue
        if setting is not None and environment[variable]:
            given.take(setting, value_of_variable(environment[variable]), variable)
        elif (
            setting is None
            and variable.startswith(ENVIRONMENT_PREFIX)
            and variable not in _OTHER_VARIABLES
            and not _KUBERNETES.fullmatch(variable)
        ):
            meant = _meant(variable, (*by_variable, *_OTHER_VARIABLES))
            given.mistakes.append(f"{variable}: no such setting{meant}")


def _is_service_link(variable: str, value: str) -> bool:
    """True for a variable that Kubernetes sets for a service of the namespace."""
    return _KUBERNETES.fullmatch(variable) is not None and _SERVICE_LINK.fullmatch(value) is not None


def _meant(name: str, known: Iterable[str]) -> str:
    folded = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def _build(given: GivenSettings, exposed: tuple[str, ...]) -> BrokerConfig | None:
    """Return the config, or None if a part of it cannot be made."""
    value = {name: given.value(name) for name in SETTINGS}
    servers = None
    if value["nats"]:
        try:
            servers = parse_nats_urls(",".join(value["nats"]))
        except ConfigError as error:
            given.mistakes += [f"{given['nats'].origin}: {text.removeprefix('nats: ')}" for text in error.mistakes]
    credentials = NatsCredentials(
        user=value["nats_user"],
        password=value["nats_password"],
        token=value["nats_token"],
        nkey_file=value["nats_nkey_seed"],
        creds_file=value["nats_creds"],
    )
    tls = TlsFiles(ca_file=value["nats_tls_ca"], cert_file=value["nats_tls_cert"], key_file=value["nats_tls_key"])
    if value["nats"]:
        given.mistakes += _with_origins(given, credentials.mistakes(), "nats_", but_not="nats_tls_")
        given.mistakes += _with_origins(given, tls.mistakes(), "nats_tls_")
    own_tls = _own_tls(value)
    if not any(name.startswith("tls_") for name in given.without_value):
        given.mistakes += _with_origins(given, own_tls.mistakes(), "tls_")
    if given.mistakes:
        return None
    made = {
        "broker_id": value["id"],
        "voters": value["cluster"] or (),
        "join": value["join"] or (),
        "ports": value["ports"] or (),
        "nats": servers,
        "nats_credentials": credentials,
        "nats_tls": tls,
        "tls": own_tls,
        "exposed": exposed,
        "http": None if value["http"] == OFF else value["http"],
        "origins": MappingProxyType({name: at.origin for name, at in given.items()}),
        "shown": MappingProxyType(_shown(value, servers)),
    }
    as_given = {one.name: value[one.name] for one in fields(BrokerConfig) if one.name not in made}
    return BrokerConfig(**as_given, **made)


def _own_tls(value: Mapping[str, Any]) -> BrokerTls:
    return BrokerTls(
        cert_file=value["tls_cert"],
        key_file=value["tls_key"],
        ca_file=value["tls_ca"],
        peer_names=value["tls_peer_names"] or (),
        ignore_hosts=value["tls_ignore_hosts"],
        client_ca_file=value["tls_client_ca"],
        client_auth=value["tls_client_auth"],
    )


def _shown(value: Mapping[str, Any], servers: tuple[NatsServer, ...] | None) -> dict[str, Any]:
    """Return the settings with secrets replaced by `***`."""
    without_secrets = {name: "***" if SETTINGS[name].secret and one is not None else one for name, one in value.items()}
    for name in ("cluster", "join"):
        if value[name] is not None:
            without_secrets[name] = [str(one) for one in value[name]]
    if value["ports"] is not None:
        without_secrets["ports"] = list(value["ports"])
    return {**without_secrets, "nats": [str(server) for server in servers or ()] or EMBEDDED}


def _with_origins(given: GivenSettings, texts: list[str], prefix: str, but_not: str = " ") -> list[str]:
    """Append to each text the places of the settings it may be about."""
    places = {
        at.origin: None
        for name, at in given.items()
        if name.startswith(prefix) and not name.startswith(but_not) and name not in NATS_PLACES
    }
    return [f"{text} (see {', '.join(places)})" for text in texts]


def to_toml(config: BrokerConfig) -> str:
    """Return the effective config as a TOML file, with the origin of each setting; secrets are only mentioned."""
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
        return f"[{', '.join(str(part) if isinstance(part, int) else _toml_text(part) for part in value)}]"
    return _toml_text(str(value))


def _toml_text(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char for char in text) + '"'
