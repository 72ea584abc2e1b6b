"""Table of a broker's settings: name, parser, default, meaning; and the values given for them.

Rules: one name everywhere: `nats_port` in a TOML file, `PENSTOCK_NATS_PORT` in the environment, `--nats-port` as a
flag. A parser (`read_…`) accepts the types of all three, and raises ValueError with what it expects. Secrets are
marked, and never shown: no error repeats a value that may be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.base import limits
from penstock.base.addresses import Address, parse_address, unwanted
from penstock.base.ids import BrokerId
from penstock.base.units import format_duration_us, format_exact_bytes, parse_bytes, parse_duration_ms

EMBEDDED = "embedded"
SYNC_BY_AUTO = "auto"
OFF = "off"
DEFAULT_DOMAIN = "penstock"
"""Of JetStream's API; PubAcks name other domains only, so that those of brokers without the API stay what they are."""
CLIENT_AUTH = (OFF, "optional", "required")  # for client certificates
DISK_THREADS_MAX = 64
BROKER_ID_MAX = 2**31 - 1
BROKERS_MAX = 256
RACK_CHARS_MAX = 128
JETSTREAM_DOMAIN_CHARS_MAX = 64


class Voter(NamedTuple):
    """An initial voter of a cluster; `str()` returns ID@HOST:PORT."""

    broker_id: BrokerId
    address: Address

    def __str__(self) -> str:
        return f"{self.broker_id}@{self.address}"


def read_text(value: object) -> str:
    """Parse non-empty text."""
    if not isinstance(value, str) or not value:
        raise ValueError("expected text (in quotes, and not empty)")  # not repeated: it may be a secret
    return value


def read_cluster_secret(value: object) -> str:
    """Parse a secret of sufficient length."""
    secret = read_text(value)
    if len(secret) < limits.CLUSTER_SECRET_CHARS_MIN:
        raise ValueError(cluster_secret_advice(secret))
    return secret


def cluster_secret_advice(secret: str) -> str:
    """Return the error for a secret that is too short."""
    return (
        f"a secret of {len(secret)} characters can be guessed; use {limits.CLUSTER_SECRET_CHARS_MIN} or more random "
        "ones: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
    )


def read_path(value: object) -> Path:
    """Parse a path; `~` is the home directory."""
    text = read_text(value)
    if "\0" in text:
        raise ValueError(f"{text!r} is no path: it holds a NUL")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text!r}: there is no such home") from None


def read_listen_address(value: object) -> Address:
    """Parse HOST:PORT of this machine."""
    return parse_address(read_text(value), any_port=True)


def read_http_address(value: object) -> Address | str:
    """Parse HOST:PORT of this machine, or OFF."""
    return OFF if value is False or value == OFF else read_listen_address(value)


def read_http_url(value: object) -> str:
    """Parse http://HOST:PORT, optionally with a path; credentials are refused."""
    text = read_text(value)
    try:
        parts = urlsplit(text)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid port or brackets
        is_sound = False
    if not is_sound or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("expected a URL such as http://127.0.0.1:4318, without user, password and query")
    return text


def read_token(value: object) -> str:
    """Parse a token that can be sent in a header."""
    text = read_text(value)
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("expected a token of printable ASCII characters without spaces")
    return text


def read_advertised_address(value: object) -> Address:
    """Parse HOST:PORT at which others reach this broker."""
    address = parse_address(read_text(value))
    if address.is_any:
        raise ValueError(f"{address} means every address of a machine: name one at which the others reach it")
    return address


def _integer(value: object, low: int, high: int) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{value!r} is not a whole number between {low} and {high}")
    return value


def read_port(value: object) -> int:
    """Parse a port, or 0."""
    return _integer(value, 0, 65_535)


def read_used_port(value: object) -> int:
    """Parse a port, not 0."""
    return _integer(value, 1, 65_535)


def read_disk_thread_count(value: object) -> int:
    """Parse a number of threads."""
    return _integer(value, 1, DISK_THREADS_MAX)


def read_in_flight_bytes(value: object) -> int:
    """Parse a memory size in bytes."""
    size = parse_bytes(value) if isinstance(value, str) else value
    if not isinstance(size, int) or isinstance(size, bool) or not limits.MIB <= size <= 64 * limits.GIB:
        raise ValueError(f"{value!r} is not a size between 1MiB and 64GiB")
    return size


def read_rate(value: object) -> int:
    """Parse bytes per second; 0: off."""
    size = parse_bytes(value) if isinstance(value, str) else value
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= 64 * limits.GIB:
        raise ValueError(f"{value!r} is not a size between 0 and 64GiB")
    return size


def read_catch_up_rate(value: object) -> int:
    """Parse bytes per second, with a minimum."""
    if (rate := read_rate(value)) < limits.MIB:
        raise ValueError(f"{value!r} is less than 1MiB: a replica with that rate would hardly ever catch up")
    return rate


def read_scrub_interval_ms(value: object) -> int:
    """Parse a time; returns milliseconds."""
    interval_ms = parse_duration_ms(value) if isinstance(value, str) else value
    if not isinstance(interval_ms, int) or isinstance(interval_ms, bool):
        raise ValueError(f"{value!r} is not a time; write for example 24h or 7d")
    if not limits.SCRUB_INTERVAL_MS_MIN <= interval_ms <= limits.SCRUB_INTERVAL_MS_MAX:
        raise ValueError(f"{value!r} is not between 1s and 365d")
    return interval_ms


def read_broker_count(value: object) -> int:
    """Parse a number of brokers."""
    return _integer(value, 1, BROKERS_MAX)


def read_ports(value: object) -> tuple[int, ...]:
    """Parse several distinct ports."""
    ports = tuple(_integer(part, 1, 65_535) for part in (_texts_of_ports(value)))
    if doubles := sorted({str(port) for port in ports if ports.count(port) > 1}):
        raise ValueError(f"the same port for two brokers: {', '.join(doubles)}")
    return ports


def _texts_of_ports(value: object) -> tuple[object, ...]:
    if isinstance(value, list | tuple) and not any(isinstance(part, str) for part in value):
        return tuple(value)  # from a file
    if not (parts := _parts(value, "ports separated by commas, such as 7422,7500")):
        raise ValueError("no port given; expected some separated by commas, such as 7422,7500")
    return parts


def read_boolean(value: object) -> bool:
    """Parse a boolean in its common spellings."""
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
    found = known.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is neither true nor false")
    return found


def _parts(value: object, expected: str) -> tuple[str, ...]:
    """Return the texts of a list, or the comma-separated parts of one text."""
    parts = list(value) if isinstance(value, list | tuple) else [value]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ValueError(f"expected {expected}, or a list of them")
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def read_urls(value: object) -> tuple[str, ...]:
    """Parse NATS URLs; empty: the embedded server."""
    urls = _parts(value, "a URL such as nats://localhost:4222")
    if not urls:
        raise ValueError(f"no URL given; write for example nats://localhost:4222, or {EMBEDDED}")
    return () if urls == (EMBEDDED,) else urls


def read_leaf_urls(value: object) -> tuple[str, ...]:
    """Parse URLs of leaf ports; empty: OFF."""
    expected = "a URL such as nats://localhost:7422, with the port of `leafnodes`"
    if not (urls := _parts(value, expected)):
        raise ValueError(f"no URL given; expected {expected}, or {OFF}")
    if urls == (OFF,):
        return ()
    for url in urls:
        if not url.rpartition("@")[2].rpartition(":")[2].rstrip("/").isdecimal():
            raise ValueError(f"the port is missing; expected {expected}")  # not repeated: it may hold a password
    return urls


def read_names(value: object) -> tuple[str, ...]:
    """Parse several names."""
    if not (names := _parts(value, "names separated by commas")):
        raise ValueError("no name given; expected some separated by commas, such as a.example.com,b.example.com")
    return names


def read_broker_id(value: object) -> BrokerId:
    """Parse a broker id."""
    return BrokerId(_integer(value, 1, BROKER_ID_MAX))


def read_voters(value: object) -> tuple[Voter, ...]:
    """Parse several ID@HOST:PORT."""
    expected = "ID@HOST:PORT such as 1@10.0.0.1:7422"
    voters = tuple(_voter(part, expected) for part in _parts(value, expected))
    if not voters:
        raise ValueError(f"no broker given; expected {expected}, several separated by commas")
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
    """Return the address in a canonical form, without resolving names."""
    host = address.host.lower()
    return Address("127.0.0.1" if host == "localhost" else host, address.port)


def _voter(text: str, expected: str) -> Voter:
    id_text, at, address = text.partition("@")
    if not at:
        raise ValueError(f"{text!r} is not a broker; expected {expected}")
    if not (id_text.isascii() and id_text.isdigit() and 0 < int(id_text[:11]) <= BROKER_ID_MAX):
        if "@" in address or not id_text.isalnum():
            raise ValueError(f"the text before the '@' is not an id from 1 to {BROKER_ID_MAX}; expected {expected}")
        raise ValueError(f"{text!r}: {id_text!r} is not an id from 1 to {BROKER_ID_MAX}; expected {expected}")
    return Voter(BrokerId(int(id_text)), read_advertised_address(address))


def read_addresses_to_join(value: object) -> tuple[Address, ...]:
    """Parse several HOST:PORT."""
    parts = _parts(value, "HOST:PORT of a broker of the cluster")
    if (mistake := next(filter(None, map(unwanted, reversed(parts))), None)) is not None:
        raise ValueError(mistake)  # check first: a comma in a password splits a URL
    addresses = tuple(map(parse_address, parts))
    if not addresses:
        raise ValueError("no address given; expected HOST:PORT of brokers of the cluster, separated by commas")
    return addresses


def read_rack(value: object) -> str:
    """Parse the name of a rack."""
    text = read_text(value)
    if len(text) > RACK_CHARS_MAX:
        raise ValueError(f"{len(text)} characters; a rack has a name of at most {RACK_CHARS_MAX}")
    return text


def read_one_of(*choices: str) -> Callable[[object], str]:
    """Return a parser that accepts these words."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {', '.join(choices)}")
        return str(value)

    return parse


def read_jetstream_domain(value: object) -> str:
    """Parse the name of a JetStream domain: one token of a subject."""
    text = read_text(value)
    if len(text) > JETSTREAM_DOMAIN_CHARS_MAX or re.fullmatch("[A-Za-z0-9_-]+", text) is None or text == "API":
        raise ValueError(
            f"{text!r} is no domain: it has at most {JETSTREAM_DOMAIN_CHARS_MAX} letters, digits, '-' and '_'"
        )
    return text


ENVIRONMENT_PREFIX = "PENSTOCK_"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("human", "json")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `default`: the value if not set; None: no value."""

    name: str
    parse: Callable[[object], Any]
    default: Any
    metavar: str
    meaning: str
    secret: bool = False
    names_file: bool = False  # a relative path in a config file is relative to that file

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
        """The default as a user would write it; empty: no value."""
        if self.default is None:
            return ""
        if self.default == ():
            return OFF if self.name == "nats_leaf" else EMBEDDED
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if self.metavar == "TIME":
            return format_duration_us(self.default * 1_000)
        return format_exact_bytes(self.default) if self.metavar == "SIZE" else str(self.default)


_TABLE = (
    Setting(
        "data_dir",
        read_path,
        Path("penstock-data"),
        "DIR",
        "Directory of the stored streams; created if missing. Used by one broker at a time.",
        names_file=True,
    ),
    Setting(
        "listen",
        read_listen_address,
        Address("127.0.0.1", 7422),
        "HOST:PORT",
        "Where clients connect; port 0 takes any free one. Beyond this machine only with `auth`, or `insecure`.",
    ),
    Setting(
        "advertise",
        read_advertised_address,
        None,
        "HOST:PORT",
        "The address announced to clients and to the other brokers, if it is not `listen`.",
    ),
    Setting(
        "insecure",
        read_boolean,
        False,
        "",
        "Listen beyond this machine without authentication: anyone who reaches the port may read, write and delete "
        "everything.",
    ),
    Setting(
        "tls_cert",
        read_path,
        None,
        "FILE",
        "Certificate (PEM, with those between it and its authority) of this broker. With it, clients and the other "
        "brokers reach it through TLS only. Read again when it changes, and on SIGHUP.",
        names_file=True,
    ),
    Setting("tls_key", read_path, None, "FILE", "The key (PEM) of that certificate.", names_file=True),
    Setting(
        "tls_ca",
        read_path,
        None,
        "FILE",
        "Certificates (PEM) of the authorities that brokers are checked against, both ways: this broker shows its own "
        "certificate to the others.",
        names_file=True,
    ),
    Setting(
        "tls_peer_names",
        read_names,
        None,
        "NAME",
        "Names (DNS or addresses), separated by commas: another broker's certificate must have one of them. Not "
        "set: any certificate of `tls_ca`.",
    ),
    Setting(
        "tls_ignore_hosts",
        read_boolean,
        False,
        "",
        "Accept a broker's certificate of `tls_ca` even if it is not for the host at which this broker reaches it.",
    ),
    Setting(
        "tls_client_ca",
        read_path,
        None,
        "FILE",
        "Certificates (PEM) of the authorities that clients are checked against.",
        names_file=True,
    ),
    Setting(
        "tls_client_auth",
        read_one_of(*CLIENT_AUTH),
        None,
        "WHEN",
        "Whether clients need a certificate: `off`, `optional`, `required`. Not set: `required` with `tls_client_ca`.",
    ),
    Setting(
        "auth",
        read_boolean,
        False,
        "",
        "Require a login, from the first start on. The first start creates the user admin, with the password of "
        "`admin_password_file`, or with one that it writes into the data directory.",
    ),
    Setting(
        "admin_password",
        read_text,
        None,
        "TEXT",
        "Password of the user admin, created by the first start: at least 8 characters. Ignored once there are users.",
        secret=True,
    ),
    Setting(
        "admin_password_file",
        read_path,
        None,
        "FILE",
        "File that holds the password of the user admin.",
        names_file=True,
    ),
    Setting(
        "cluster_secret",
        read_cluster_secret,
        None,
        "TEXT",
        "Secret shared by all brokers of a cluster: at least 32 random characters. With it brokers "
        "authenticate to each other.",
        secret=True,
    ),
    Setting("cluster_secret_file", read_path, None, "FILE", "File that holds that secret.", names_file=True),
    Setting(
        "allow_open_secrets",
        read_boolean,
        False,
        "",
        "Start even if other users of this machine may read a file with a secret or a key; the log names each. For "
        "containers, where modes of mounted files mean nothing.",
    ),
    Setting(
        "id",
        read_broker_id,
        BrokerId(1),
        "N",
        "The id of this broker in its cluster, from 1. It is stored in the data directory and never changes.",
    ),
    Setting(
        "cluster",
        read_voters,
        None,
        "ID@HOST:PORT",
        "The initial brokers of the cluster, the same list for each of them, separated by commas: "
        "1@a:7422,2@b:7422,3@c:7422. Three tolerate the loss of one, five (the most) of two. Each listens on its own "
        "address there unless `listen` is set (as where it has moved), and all use the same `nats`.",
    ),
    Setting(
        "join",
        read_addresses_to_join,
        None,
        "HOST:PORT",
        "Brokers of an existing cluster to join, separated by commas; instead of `cluster`.",
    ),
    Setting(
        "rack",
        read_rack,
        None,
        "NAME",
        "Location of this broker: a host, a rack, a zone. Replicas are spread over different ones. Not set: a location "
        "of its own; with `brokers`, the name of this machine.",
    ),
    Setting(
        "brokers",
        read_broker_count,
        None,
        "N",
        "Number of brokers to run, one for each core, and to restart when they exit. They have `id` and the following "
        "ids, `listen` and the following ports, and each its own directory in `data_dir`. Their `rack` is this "
        "machine. Not set: one broker, in this process.",
    ),
    Setting(
        "ports",
        read_ports,
        None,
        "PORT",
        "The ports of these brokers, separated by commas, if not consecutive from that of `listen`.",
    ),
    Setting("pin", read_boolean, False, "", "Pin each of these brokers to a core of its own, if there are enough."),
    Setting(
        "nats",
        read_urls,
        (),
        "URL",
        "The nats-server(s) to use: nats://host:4222 or tls://host:4222, several separated by commas. One of a cluster "
        "suffices, as it announces the others; name more, so that the start does not depend on it. "
        f"`{EMBEDDED}` starts one of its own, for this machine only.",
    ),
    Setting(
        "nats_port",
        read_port,
        4222,
        "PORT",
        "Port of the embedded nats-server; 0, or a port in use: a free one.",
    ),
    Setting(
        "nats_monitor_port",
        read_used_port,
        None,
        "PORT",
        "Port at which the embedded nats-server shows its connections and traffic, as `nats-top -m PORT` reads them; "
        "every program of this machine can. Not set: none.",
    ),
    Setting(
        "encryption_keys",
        read_text,
        None,
        "KEYS",
        "Keys for encrypted streams, the current one first, separated by commas: what `penstock keys new` prints.",
        secret=True,
    ),
    Setting(
        "encryption_keys_file",
        read_path,
        None,
        "FILE",
        "File that holds these keys, one a line, readable by the broker's user only (mode 0600). SIGHUP reloads it.",
        names_file=True,
    ),
    Setting(
        "encrypt_internal_streams",
        read_boolean,
        False,
        "",
        "Encrypt internal streams created from now on, such as `__offsets`; all brokers need keys.",
    ),
    Setting(
        "nats_ignore_announced",
        read_boolean,
        False,
        "",
        "Use only the nats-servers of `nats`, and not the others that these announce: if their addresses are those "
        "of another network, or if they must not get the credentials.",
    ),
    Setting(
        "jetstream_api",
        read_one_of(OFF, "domain", "auto"),
        OFF,
        "off|domain|auto",
        "Serve JetStream's API to NATS clients: `domain` as `$JS.<jetstream_domain>.API` only, `auto` also as "
        "`$JS.API`, while no broker finds another service there. The strictest setting of all brokers holds.",
    ),
    Setting("jetstream_domain", read_jetstream_domain, DEFAULT_DOMAIN, "NAME", "Name of the JetStream domain."),
    Setting(
        "jetstream_rights",
        read_one_of("read", "manage"),
        None,
        "read|manage",
        "What NATS clients may do through JetStream's API: `read` streams and messages, or also `manage` them "
        "(default: `manage` with the embedded nats-server or with `auth`, else `read`).",
    ),
    Setting(
        "jetstream_user",
        read_text,
        None,
        "USER",
        "The user of Penstock as whom all callers of JetStream's API act; with `auth` they may do nothing without it.",
    ),
    Setting(
        "nats_leaf",
        read_leaf_urls,
        (),
        "URL",
        "The leaf port of that nats-server (`leafnodes`), over which subscribers get deliveries: nats://host:port or "
        "tls://host:port, several separated by commas. The login is that of the URL, else the one for NATS. "
        f"`{OFF}`: no deliveries. The embedded nats-server has its own.",
    ),
    Setting("nats_user", read_text, None, "NAME", "User name for NATS."),
    Setting("nats_password", read_text, None, "TEXT", "Password for NATS.", secret=True),
    Setting("nats_password_file", read_path, None, "FILE", "File that holds the password for NATS.", names_file=True),
    Setting("nats_token", read_text, None, "TEXT", "Token for NATS.", secret=True),
    Setting("nats_token_file", read_path, None, "FILE", "File that holds the token for NATS.", names_file=True),
    Setting(
        "nats_nkey_seed", read_path, None, "FILE", "File that holds an nkey seed (SU...) for NATS.", names_file=True
    ),
    Setting("nats_creds", read_path, None, "FILE", "NATS credentials file (.creds).", names_file=True),
    Setting(
        "nats_tls_ca",
        read_path,
        None,
        "FILE",
        "Certificates (PEM) of the authorities of NATS, if not the system's.",
        names_file=True,
    ),
    Setting("nats_tls_cert", read_path, None, "FILE", "Our certificate (PEM) for NATS.", names_file=True),
    Setting("nats_tls_key", read_path, None, "FILE", "The key (PEM) of our certificate.", names_file=True),
    Setting(
        "http",
        read_http_address,
        Address("127.0.0.1", 8422),
        "HOST:PORT",
        "Address of metrics (/metrics), liveness (/healthz) and readiness (/readyz); `off`: none. Each of "
        "several `brokers` takes a port of its own, from this one on. If it is not set and the port is taken, a "
        "free one is used, and logged. Beyond this machine only with `http_token` or `insecure`.",
    ),
    Setting(
        "http_token",
        read_token,
        None,
        "TEXT",
        "Requests for /metrics must have `Authorization: Bearer TEXT`; /healthz and /readyz need no token.",
        secret=True,
    ),
    Setting("http_token_file", read_path, None, "FILE", "File that holds that token.", names_file=True),
    Setting(
        "http_tls",
        read_boolean,
        False,
        "",
        "Have the HTTP port speak TLS only, with the certificate of `tls_cert`; no client certificates are requested.",
    ),
    Setting(
        "otlp_endpoint",
        read_http_url,
        None,
        "URL",
        "Endpoint for spans of traced messages (OTLP over HTTP), such as http://127.0.0.1:4318; needs the extra `otel`."
        " Not set: nothing is traced.",
    ),
    Setting("log_level", read_one_of(*LOG_LEVELS), "info", "LEVEL", f"What is logged: {', '.join(LOG_LEVELS)}."),
    Setting(
        "log_format", read_one_of(*LOG_FORMATS), "human", "FORMAT", f"How it is logged: {' or '.join(LOG_FORMATS)}."
    ),
    Setting(
        "partition_in_flight_bytes",
        read_in_flight_bytes,
        limits.PARTITION_IN_FLIGHT_BYTES_MAX,
        "SIZE",
        "Memory for messages of one stream that are not acked yet; above it messages are refused.",
    ),
    Setting(
        "broker_in_flight_bytes",
        read_in_flight_bytes,
        limits.BROKER_IN_FLIGHT_BYTES_MAX,
        "SIZE",
        "The same for all streams; above it the broker stops reading from NATS.",
    ),
    Setting(
        "cleaner_rate",
        read_rate,
        limits.CLEANING_BYTES_PER_S_DEFAULT,
        "SIZE",
        "Bytes a second that the cleaner reads and writes while it merges small batches; 0 turns it off, but for "
        "secure deletions.",
    ),
    Setting(
        "catch_up_rate",
        read_catch_up_rate,
        limits.CATCH_UP_BYTES_PER_S_DEFAULT,
        "SIZE",
        "Bytes a second that replicas which are not in sync fetch, on top of what their leaders receive meanwhile.",
    ),
    Setting(
        "scrub_rate",
        read_rate,
        limits.SCRUB_BYTES_PER_S_DEFAULT,
        "SIZE",
        "Bytes a second of stored messages that are read to detect corruption; 0 turns it off.",
    ),
    Setting(
        "scrub_interval",
        read_scrub_interval_ms,
        limits.SCRUB_INTERVAL_MS_DEFAULT,
        "TIME",
        "Interval between the starts of two such passes over all messages.",
    ),
    Setting(
        "disk_threads",
        read_disk_thread_count,
        limits.DISK_THREADS_DEFAULT,
        "N",
        "Threads for disk work: the number of streams that are synced at once.",
    ),
    Setting(
        "sync_by",
        read_one_of(SYNC_BY_AUTO, "threads"),
        SYNC_BY_AUTO,
        "WHO",
        "Who syncs files: `auto`, the kernel (Linux AIO) where a trial at the start works, else threads; or `threads`.",
    ),
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
"""By name, in the order of the documentation."""


class SourcedValue(NamedTuple):
    """The value of a setting, and the place that gave it."""

    value: Any
    origin: str


class GivenSettings(dict[str, SourcedValue]):
    """The settings that the places of a config give, by name, and all mistakes in them."""

    def __init__(self) -> None:
        super().__init__()
        self.mistakes: list[str] = []
        self.file: Path | None = None  # that was read
        self.without_value: set[str] = set()  # given without a valid value: they must not cause further mistakes

    def take(self, setting: Setting, raw: object, origin: str) -> None:
        """Parse a value given at `origin`; it overrides that of an earlier place."""
        try:
            self[setting.name] = SourcedValue(setting.parse(raw), origin)
        except ValueError as error:
            self.mistakes.append(f"{origin}: {error}")
            self.without_value.add(setting.name)

    def value(self, name: str) -> Any:
        """Return the value of a setting, or its default."""
        at = self.get(name)
        return SETTINGS[name].default if at is None else at.value

    def origin(self, name: str) -> str:
        """Return the place that set it."""
        at = self.get(name)
        return f"{name} (default)" if at is None else at.origin
