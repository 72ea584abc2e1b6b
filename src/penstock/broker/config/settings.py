"""Table of a broker's settings: name, parser, default, meaning.

Rules: one name everywhere: `nats_port` in a TOML file, `PENSTOCK_NATS_PORT` in the environment, `--nats-port` as a
flag. Secrets are marked, and never shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.ids import BrokerId
from penstock.base.units import format_duration_us, format_exact_bytes
from penstock.broker.config.setting_values import (
    CLIENT_AUTH,
    EMBEDDED,
    read_addresses_to_join,
    read_advertised_address,
    read_boolean,
    read_broker_count,
    read_broker_id,
    read_catch_up_rate,
    read_cluster_secret,
    read_disk_thread_count,
    read_http_address,
    read_http_url,
    read_in_flight_bytes,
    read_listen_address,
    read_names,
    read_one_of,
    read_path,
    read_port,
    read_ports,
    read_rack,
    read_rate,
    read_scrub_interval_ms,
    read_text,
    read_token,
    read_urls,
    read_voters,
)

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
            return EMBEDDED
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
        "Bytes a second that the cleaner reads and writes while it merges small batches; 0 turns it off.",
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
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
"""By name, in the order of the documentation."""
