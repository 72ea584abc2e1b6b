"""The settings of a broker, as one table: name, how it is read, default, what it means.

Rules: the same name everywhere: `nats_port` in a TOML file, `PENSTOCK_NATS_PORT` in the environment, `--nats-port` as a
flag. A parser takes what any of the three gave, and raises ValueError with what it expects. Secrets are marked, and
shown nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.base import limits
from penstock.base.addresses import Address as Address  # given on: where a broker listens is one of its settings
from penstock.base.addresses import parse_address as parse_address
from penstock.base.ids import BrokerId
from penstock.base.units import format_duration_us, format_exact_bytes, parse_bytes, parse_duration_ms

ENVIRONMENT_PREFIX = "PENSTOCK_"
EMBEDDED = "embedded"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("human", "json")
DISK_THREADS_MAX = 64
BROKER_ID_MAX = 2**31 - 1
BROKERS_MAX = 256
RACK_CHARS_MAX = 128


class Voter(NamedTuple):
    """One of the brokers that a cluster begins with; `str()` gives ID@HOST:PORT."""

    broker_id: BrokerId
    address: Address

    def __str__(self) -> str:
        return f"{self.broker_id}@{self.address}"


def voters_advice(voters: tuple[Voter, ...]) -> str | None:
    """What an operator should know about so many voters, or None."""
    if len(voters) == 2:
        return (
            "a cluster of 2 voters does NOT survive the loss of one: both are needed for every decision, so it fails "
            "more often than a single broker does. Name 3 (--cluster)"
        )
    if len(voters) % 2 == 0 and voters:
        fewer = len(voters) - 1
        return f"a cluster of {len(voters)} voters survives the loss of no more of them than one of {fewer} does"
    return None


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("expected text (in quotes, and not empty)")  # it may be a secret: not repeated
    return value


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


def _listen(value: object) -> Address:
    return parse_address(_text(value), any_port=True)


def _advertise(value: object) -> Address:
    address = parse_address(_text(value))
    if address.is_any:
        raise ValueError(f"{address} stands for every address of a machine: name one at which the others reach it")
    return address


def _integer(value: object, low: int, high: int) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{value!r} is not a whole number between {low} and {high}")
    return value


def _port(value: object) -> int:
    return _integer(value, 0, 65_535)


def _disk_threads(value: object) -> int:
    return _integer(value, 1, DISK_THREADS_MAX)


def _in_flight_bytes(value: object) -> int:
    size = parse_bytes(value) if isinstance(value, str) else value
    if not isinstance(size, int) or isinstance(size, bool) or not limits.MIB <= size <= 64 * limits.GIB:
        raise ValueError(f"{value!r} is not a size between 1MiB and 64GiB")
    return size


def _rate(value: object) -> int:
    size = parse_bytes(value) if isinstance(value, str) else value
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= 64 * limits.GIB:
        raise ValueError(f"{value!r} is not a size between 0 and 64GiB")
    return size


def _catch_up_rate(value: object) -> int:
    if (rate := _rate(value)) < limits.MIB:
        raise ValueError(f"{value!r} is less than 1MiB: a replica with that rate would hardly ever catch up")
    return rate


def _scrub_interval_ms(value: object) -> int:
    interval_ms = parse_duration_ms(value) if isinstance(value, str) else value
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool):
        raise ValueError(f"{value!r} is not a time; write for example 24h or 7d")
    if not limits.SCRUB_INTERVAL_MS_MIN <= interval_ms <= limits.SCRUB_INTERVAL_MS_MAX:
        raise ValueError(f"{value!r} is not between 1s and 365d")
    return interval_ms


def _brokers(value: object) -> int:
    return _integer(value, 1, BROKERS_MAX)


def _ports(value: object) -> tuple[int, ...]:
    ports = tuple(_integer(part, 1, 65_535) for part in (_texts_of_ports(value)))
    if doubles := sorted({str(port) for port in ports if ports.count(port) > 1}):
        raise ValueError(f"the same port for two brokers: {', '.join(doubles)}")
    return ports


def _texts_of_ports(value: object) -> tuple[object, ...]:
    if isinstance(value, list | tuple) and not any(isinstance(part, str) for part in value):
        return tuple(value)  # of a file
    if not (parts := _parts(value, "ports parted by commas, such as 7422,7500")):
        raise ValueError("no port given; expected some parted by commas, such as 7422,7500")
    return parts


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    found = known.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return found


def _parts(value: object, expected: str) -> tuple[str, ...]:
    """The texts of a list, or those parted by commas in one text."""
    parts = list(value) if isinstance(value, list | tuple) else [value]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError(f"expected {expected}, or a list of them")
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _urls(value: object) -> tuple[str, ...]:
    urls = _parts(value, "a URL such as nats://localhost:4222")
    if not urls:
        raise ValueError(f"no URL given; write for example nats://localhost:4222, or {EMBEDDED}")
    return () if urls == (EMBEDDED,) else urls


def _broker_id(value: object) -> BrokerId:
    return BrokerId(_integer(value, 1, BROKER_ID_MAX))


def _voters(value: object) -> tuple[Voter, ...]:
    expected = "ID@HOST:PORT such as 1@10.0.0.1:7422"
    voters = tuple(_voter(part, expected) for part in _parts(value, expected))
    if not voters:
        raise ValueError(f"no broker given; expected {expected}, several parted by commas")
    if any(
        not part.strip() for text in (value if isinstance(value, list | tuple) else [value]) for part in _split(text)
    ):
        raise ValueError(f"one of the brokers is empty: is one missing between two commas? Expected {expected}")
    if len(voters) > limits.RAFT_VOTERS_MAX:
        text = f"{len(voters)} voters; at most {limits.RAFT_VOTERS_MAX} decide together. Start the others with --join"
        raise ValueError(text)
    ids = [str(voter.broker_id) for voter in voters]
    mistakes = []
    for what, texts in (("id", ids), ("address", [str(as_reached(voter.address)) for voter in voters])):
        if doubles := sorted({text for text in texts if texts.count(text) > 1}):
            mistakes.append(f"two brokers with the same {what}: {', '.join(doubles)}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return voters


def _split(text: object) -> list[str]:
    return text.strip().removesuffix(",").split(",") if isinstance(text, str) and text.strip() else []


def as_reached(address: Address) -> Address:
    """The same for every way to write it, as far as that can be told without asking for names."""
    host = address.host.lower()
    return Address("127.0.0.1" if host == "localhost" else host, address.port)


def _voter(text: str, expected: str) -> Voter:
    id_text, at, address = text.partition("@")
    if not at:
        raise ValueError(f"{text!r} is not a broker; expected {expected}")
    if not (id_text.isascii() and id_text.isdigit() and 0 < int(id_text[:11]) <= BROKER_ID_MAX):
        raise ValueError(f"{text!r}: {id_text!r} is not an id from 1 to {BROKER_ID_MAX}; expected {expected}")
    return Voter(BrokerId(int(id_text)), parse_address(address))


def _join(value: object) -> tuple[Address, ...]:
    addresses = tuple(map(parse_address, _parts(value, "HOST:PORT of a broker of the cluster")))
    if not addresses:
        raise ValueError("no address given; expected HOST:PORT of brokers of the cluster, parted by commas")
    return addresses


def _rack(value: object) -> str:
    text = _text(value)
    if len(text) > RACK_CHARS_MAX:
        raise ValueError(f"{len(text)} characters; a rack has a name of at most {RACK_CHARS_MAX}")
    return text


def _one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return parse


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `default` is what stands there when nobody sets it; None: not set."""

    name: str
    parse: Callable[[object], Any]
    default: Any
    metavar: str
    meaning: str
    secret: bool = False
    names_file: bool = False  # a relative path in a config file counts from that file's directory

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Its command line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as a person would write it; empty: not set."""
        if self.default is None:
            return ""
        if self.default == ():
            return EMBEDDED
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if self.metavar == "TIME":
            return format_duration_us(self.default * 1_000)
        return format_exact_bytes(self.default) if self.metavar == "SIZE" else str(self.default)


_TABLE = (
    Setting(
        "data_dir",
        _path,
        Path("penstock-data"),
        "DIR",
        "Where streams are stored; made if it is not there. One broker at a time uses it.",
        names_file=True,
    ),
    Setting(
        "listen",
        _listen,
        Address("127.0.0.1", 7422),
        "HOST:PORT",
        "Where clients connect; port 0 takes any free one. Beyond this machine only with `insecure`.",
    ),
    Setting(
        "advertise",
        _advertise,
        None,
        "HOST:PORT",
        "The address that clients and the other brokers are told, where it is not `listen`.",
    ),
    Setting(
        "insecure",
        _boolean,
        False,
        "",
        "Listen beyond this machine although there is no authentication: whoever reaches the port may read, write "
        "and delete everything.",
    ),
    Setting(
        "id",
        _broker_id,
        BrokerId(1),
        "N",
        "The number of this broker in its cluster, from 1. Its data directory keeps it for good.",
    ),
    Setting(
        "cluster",
        _voters,
        None,
        "ID@HOST:PORT",
        "The brokers that the cluster begins with, the same list for each of them, parted by commas: "
        "1@a:7422,2@b:7422,3@c:7422. Three survive the loss of one, five (the most) of two. Each listens on its own "
        "address there unless `listen` is set (as where it has moved), and all use the same `nats`.",
    ),
    Setting(
        "join",
        _join,
        None,
        "HOST:PORT",
        "Brokers of the cluster that this one is to join, several parted by commas; instead of `cluster`.",
    ),
    Setting(
        "rack",
        _rack,
        None,
        "NAME",
        "Where this broker stands: a host, a rack, a zone. Replicas are spread over different ones. Not set: somewhere "
        "of its own; with `brokers`, the name of this machine.",
    ),
    Setting(
        "brokers",
        _brokers,
        None,
        "N",
        "Run so many brokers, one for each core, and keep them running. They are `id` and those that follow, at "
        "`listen` and the ports that follow, each with a directory of its own in `data_dir`. Their `rack` is this "
        "machine. Not set: one broker, in this process.",
    ),
    Setting(
        "ports",
        _ports,
        None,
        "PORT",
        "The ports of these brokers, parted by commas, where they do not follow that of `listen`.",
    ),
    Setting("pin", _boolean, False, "", "Keep each of these brokers on a core of its own, where there are so many."),
    Setting(
        "nats",
        _urls,
        (),
        "URL",
        f"The nats-server(s) to use: nats://host:4222 or tls://host:4222, several parted by commas. `{EMBEDDED}` "
        "starts one of its own, for this machine only.",
    ),
    Setting(
        "nats_port",
        _port,
        4222,
        "PORT",
        "Port of the embedded nats-server; a free one is taken when it is in use, or with 0.",
    ),
    Setting("nats_user", _text, None, "NAME", "User name for NATS."),
    Setting("nats_password", _text, None, "TEXT", "Password for NATS.", secret=True),
    Setting("nats_password_file", _path, None, "FILE", "File that holds the password for NATS.", names_file=True),
    Setting("nats_token", _text, None, "TEXT", "Token for NATS.", secret=True),
    Setting("nats_token_file", _path, None, "FILE", "File that holds the token for NATS.", names_file=True),
    Setting("nats_nkey_seed", _path, None, "FILE", "File that holds an nkey seed (SU...) for NATS.", names_file=True),
    Setting("nats_creds", _path, None, "FILE", "NATS credentials file (.creds).", names_file=True),
    Setting(
        "nats_tls_ca",
        _path,
        None,
        "FILE",
        "Certificates (PEM) that NATS is checked against, where the system's do not do.",
        names_file=True,
    ),
    Setting("nats_tls_cert", _path, None, "FILE", "Our certificate (PEM) for NATS.", names_file=True),
    Setting("nats_tls_key", _path, None, "FILE", "The key (PEM) of our certificate.", names_file=True),
    Setting("log_level", _one_of(*LOG_LEVELS), "info", "LEVEL", f"What is logged: {', '.join(LOG_LEVELS)}."),
    Setting("log_format", _one_of(*LOG_FORMATS), "human", "FORMAT", f"How it is logged: {' or '.join(LOG_FORMATS)}."),
    Setting(
        "partition_in_flight_bytes",
        _in_flight_bytes,
        limits.PARTITION_IN_FLIGHT_BYTES_MAX,
        "SIZE",
        "Memory for messages of one stream that are not acked yet; over it messages are refused.",
    ),
    Setting(
        "broker_in_flight_bytes",
        _in_flight_bytes,
        limits.BROKER_IN_FLIGHT_BYTES_MAX,
        "SIZE",
        "The same for all streams; at it the broker stops reading from NATS.",
    ),
    Setting(
        "cleaner_rate",
        _rate,
        limits.CLEANING_BYTES_PER_S_DEFAULT,
        "SIZE",
        "Bytes a second that the cleaner reads and writes while it merges small batches; 0 turns it off.",
    ),
    Setting(
        "catch_up_rate",
        _catch_up_rate,
        limits.CATCH_UP_BYTES_PER_S_DEFAULT,
        "SIZE",
        "Bytes a second that replicas which are not in sync fetch, beside what their leaders get meanwhile.",
    ),
    Setting(
        "scrub_rate",
        _rate,
        limits.SCRUB_BYTES_PER_S_DEFAULT,
        "SIZE",
        "Bytes a second of stored messages that are read to find damage; 0 turns it off.",
    ),
    Setting(
        "scrub_interval",
        _scrub_interval_ms,
        limits.SCRUB_INTERVAL_MS_DEFAULT,
        "TIME",
        "From the beginning of one such pass over everything to that of the next.",
    ),
    Setting(
        "disk_threads",
        _disk_threads,
        limits.DISK_THREADS_DEFAULT,
        "N",
        "Threads that wait for the disk: so many streams are synced at once.",
    ),
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
"""By name, in the order in which they are shown."""
