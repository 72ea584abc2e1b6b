"""Checks of a broker's settings: those that do not go together, addresses beyond this machine, secrets others can read.

Rules: every mistake is reported, with the place of the setting. A file of a secret that other users of the machine can
read stops the start, unless `allow_open_secrets` is set; then a warning is logged. A secret on the command line causes
a warning: every user can read the process list.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from penstock.access.secret_files import open_to_others
from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.text_files import text_of
from penstock.broker.config.settings import (
    OFF,
    SETTINGS,
    GivenSettings,
    SourcedValue,
    Voter,
    as_reached,
    cluster_secret_advice,
)
from penstock.vfs.keys import KeyMistakeError, parse_keys

_SECRET_FILE_BYTES_MAX = 64 * 1024

NATS_PLACES = ("nats_port", "nats_monitor_port", "nats_ignore_announced")
"""NATS settings that are about the server, not about the login."""

_URLS = ("nats", "nats_leaf")
"""NATS settings whose URLs may hold a login."""

_EMBEDDED_PORTS = {"nats_port": "the port", "nats_monitor_port": "the monitoring port"}

SECRET_FILES = {
    "nats_password_file": "nats_password",
    "nats_token_file": "nats_token",
    "http_token_file": "http_token",
    "admin_password_file": "admin_password",
    "cluster_secret_file": "cluster_secret",
    "encryption_keys_file": "encryption_keys",
}
"""Setting of a file → the secret that is read from it."""

OF_SECRETS = (*SECRET_FILES, "tls_key", "nats_tls_key", "nats_nkey_seed", "nats_creds")
"""The settings that name a file with a secret."""


def check_combinations(given: GivenSettings) -> None:
    """Add the mistakes of settings that do not go together; reads the files of secrets."""
    for file_name, name in SECRET_FILES.items():
        if file_name not in given:
            continue
        if name in given:
            given.mistakes.append(
                f"{given[file_name].origin}: {name} is set too (by {given[name].origin}); set one of them"
            )
            continue
        origin = given[file_name].origin
        secret = _read_secret(given, given[file_name].value, origin)
        if secret is None:
            given.without_value.add(name)
        if name == "cluster_secret" and secret is not None and len(secret) < limits.CLUSTER_SECRET_CHARS_MIN:
            given.mistakes.append(f"{origin}: {cluster_secret_advice(secret)}")
        # Also set if the file cannot be read: otherwise the user would be reported to lack a password.
        given[name] = SourcedValue(secret or "?", origin)
    _check_cluster(given)
    _check_keys(given)
    _check_tls(given)
    given.mistakes += [
        f"{given[name].origin}: is for several brokers on one machine; set brokers (--brokers)"
        for name in ("ports", "pin")
        if name in given and given[name].value and "brokers" not in given and "brokers" not in given.without_value
    ]
    _check_auth(given)
    is_safe = given.value("insecure") or given.value("auth")
    if (mistake := unprotected(given.value("listen"), insecure=is_safe)) is not None:
        given.mistakes.append(f"{given.origin('listen')}: {mistake}")
    _check_http(given)
    if given.value("partition_in_flight_bytes") > given.value("broker_in_flight_bytes"):
        one, all_streams = (given.origin(name) for name in ("partition_in_flight_bytes", "broker_in_flight_bytes"))
        given.mistakes.append(
            f"{one}: one stream gets more than all together (broker_in_flight_bytes, see {all_streams})"
        )
    if given.value("nats_leaf") and given.value("jetstream_api") == OFF and "jetstream_api" not in given.without_value:
        text = "nothing is delivered while jetstream_api is off; set it (--jetstream-api domain)"
        given.mistakes.append(f"{given['nats_leaf'].origin}: {text}")
    if given.value("nats"):
        given.mistakes += [
            f"{given[name].origin}: is {what} of the embedded nats-server, which {given['nats'].origin} replaces"
            for name, what in _EMBEDDED_PORTS.items()
            if name in given
        ]
        return
    if "nats" in given.without_value:
        return
    given.mistakes += [
        f"{at.origin}: the embedded nats-server takes no such setting; set nats to the URL of another"
        for name, at in given.items()
        if name.startswith("nats_") and name not in NATS_PLACES and name not in SECRET_FILES.values() and at.value != ()
    ]
    given.mistakes += [
        f"{given[name].origin}: the embedded nats-server takes no such setting; set nats to the URL of another"
        for file_name, name in SECRET_FILES.items()
        if name.startswith("nats_") and name in given and file_name not in given
    ]


def _check_keys(given: GivenSettings) -> None:
    """Add mistakes about encryption keys."""
    text = given.value("encryption_keys")
    if text is None:
        if given.value("encrypt_internal_streams"):
            origin = given["encrypt_internal_streams"].origin
            given.mistakes.append(f"{origin}: there are no keys to encrypt them with; set encryption_keys_file")
    elif "encryption_keys" not in given.without_value:
        try:
            parse_keys(text)
        except KeyMistakeError as error:
            given.mistakes.append(f"{given['encryption_keys'].origin}: {error}")


def _check_auth(given: GivenSettings) -> None:
    """Add mistakes about authentication."""
    if "admin_password" in given and not given.value("auth"):
        given.mistakes.append(f"{given['admin_password'].origin}: authentication is off; set auth (--auth)")
    cluster, join = given.get("cluster"), given.get("join")
    of_several = join if join is not None else cluster if cluster is not None and len(cluster.value) > 1 else None
    if of_several is None or not given.value("auth"):
        return
    if "cluster_secret" not in given and "cluster_secret" not in given.without_value:
        given.mistakes.append(
            f"{of_several.origin}: with auth, brokers authenticate to each other; set "
            "cluster_secret_file (--cluster-secret-file), the same for all"
        )
    if join is None and "admin_password" not in given and "admin_password" not in given.without_value:
        given.mistakes.append(
            f"{of_several.origin}: the first start creates the user admin; set admin_password_file "
            "(--admin-password-file), the same for all"
        )


def unprotected(listen: Address, *, insecure: bool) -> str | None:
    """Return why a broker does not listen at this address, or None."""
    if listen.is_loopback or insecure:
        return None
    return (
        f"{listen} can be reached from other machines without a login: anyone who "
        "reaches it may read, write and delete everything. Listen on 127.0.0.1, set auth = true (--auth), or "
        "insecure = true (--insecure) if you trust the network in front of it"
    )


def _check_http(given: GivenSettings) -> None:
    if given.value("http_tls") and "tls_cert" not in given and "tls_cert" not in given.without_value:
        given.mistakes.append(
            f"{given.origin('http_tls')}: there is no TLS without a certificate; set tls_cert and tls_key"
        )
    if given.value("http") == OFF:
        return
    insecure, has_token = given.value("insecure"), given.value("http_token") is not None
    mistake = http_unprotected(given.value("http"), insecure=insecure, has_token=has_token)
    if mistake is not None:
        given.mistakes.append(f"{given.origin('http')}: {mistake}")


def http_unprotected(http: Address, *, insecure: bool, has_token: bool) -> str | None:
    """Return why metrics are not served at this address, or None. This alone decides who may reach the HTTP port."""
    if http.is_loopback or insecure or has_token:
        return None
    return (
        f"{http} can be reached from other machines, and anyone who reaches it sees the names of streams and groups, "
        "and how much flows: set a token (--http-token-file), listen on 127.0.0.1, or set insecure = true (--insecure)"
    )


def beyond_reach(told: Address, others: Iterable[Address]) -> str | None:
    """Return why brokers at the addresses `others` cannot reach this broker at `told`, or None."""
    elsewhere = [other for other in others if not other.is_loopback]
    if not elsewhere or not (told.is_loopback or told.is_any):
        return None
    return (
        f"the others would be told that this broker is at {told}, where they, at {elsewhere[0]}, do not find it: "
        "listen on an address of this machine that they reach (--listen), or name that (--advertise)"
    )


def _check_cluster(given: GivenSettings) -> None:
    """Add mistakes about the cluster's brokers; take `listen` from `cluster` if it is not set."""
    cluster, join = given.get("cluster"), given.get("join")
    if cluster is not None and join is not None:
        given.mistakes.append(
            f"{join.origin}: the brokers of {cluster.origin} begin a cluster, others join one; set one"
        )
        return
    of_several = join if join is not None else cluster if cluster is not None and len(cluster.value) > 1 else None
    if of_several is not None and "id" not in given and "id" not in given.without_value:
        given.mistakes.append(f"{of_several.origin}: which broker of the cluster is this one? Set id (--id)")
        return
    if of_several is not None and not given.value("nats") and "nats" not in given.without_value:
        given.mistakes.append(
            f"{of_several.origin}: every broker of a cluster uses the same NATS, and the embedded nats-server is for "
            "this machine only; set nats (--nats)"
        )
    if join is not None and not any(one.is_loopback for one in join.value):
        _check_reach(given, join.value)
    if cluster is None or "id" in given.without_value:
        return
    broker_id = given.value("id")
    own = next((voter for voter in cluster.value if voter.broker_id == broker_id), None)
    if own is None:
        known = ", ".join(str(voter.broker_id) for voter in cluster.value)
        given.mistakes.append(
            f"{cluster.origin}: this broker, {broker_id} ({given.origin('id')}), is not one of {known}; start a "
            "broker that is added later with --join"
        )
        return
    if "listen" not in given and "listen" not in given.without_value:
        given["listen"] = SourcedValue(own.address, cluster.origin)
    elif not given.value("listen").port:
        given.mistakes.append(f"{given.origin('listen')}: the others look for this broker at {own.address}: not port 0")
    says_where = "advertise" in given or "advertise" in given.without_value
    if not says_where and not _is_elsewhere(given.value("listen"), own.address):
        given["advertise"] = SourcedValue(own.address, cluster.origin)
    others = [voter for voter in cluster.value if voter is not own]
    for voter in others:
        if "advertise" in given and as_reached(given["advertise"].value) == as_reached(voter.address):
            given.mistakes.append(
                f"{given['advertise'].origin}: {voter.address} is the address of broker {voter.broker_id} "
                f"({cluster.origin}): name the one at which the others reach this broker, {broker_id}"
            )
    _check_reach(given, [voter.address for voter in others])


def _check_tls(given: GivenSettings) -> None:
    """Add mistakes about certificates that depend on other settings."""
    if "tls_cert" in given.without_value:
        return
    if "tls_cert" not in given:
        # Clients on this machine may have these in their environment: alone they do not turn on the broker's TLS.
        for name in ("tls_ca", "tls_key"):
            if name in given and given[name].origin == SETTINGS[name].variable:
                del given[name]
        return
    several = next((given[name] for name in ("cluster", "join", "brokers") if name in given), None)
    is_alone = several is None or several.value == 1 or (several is given.get("cluster") and len(several.value) == 1)
    if not is_alone and "tls_ca" not in given and "tls_ca" not in given.without_value:
        given.mistakes.append(
            f"{given['tls_cert'].origin}: the brokers of a cluster check each other's certificates; set tls_ca to the "
            "authority that they are of"
        )


def _is_elsewhere(listen: Address, listed: Address) -> bool:
    """True if a broker listening there is not at the listed address, as far as known without name resolution."""
    if listen.is_any or as_reached(listen) == as_reached(listed):
        return False
    return listen.port != listed.port or (listen.is_literal and listed.is_literal)  # a name may resolve to anything


def _check_reach(given: GivenSettings, others: Iterable[Address]) -> None:
    name = "advertise" if "advertise" in given else "listen"
    if name not in given.without_value and (mistake := beyond_reach(given.value(name), others)) is not None:
        given.mistakes.append(f"{given.origin(name)}: {mistake}")


def _read_secret(given: GivenSettings, file: Path, origin: str) -> str | None:
    try:
        with file.open("rb") as opened:
            text = text_of(opened.read(_SECRET_FILE_BYTES_MAX)).rstrip("\r\n")
    except OSError as error:
        given.mistakes.append(f"{origin}: cannot read {file}: {error.strerror or error}")
        return None
    except ValueError as error:
        given.mistakes.append(f"{origin}: {file} does not hold text: {error}")
        return None
    if not text:
        given.mistakes.append(f"{origin}: {file} is empty")
        return None
    return text


def exposed_secrets(given: GivenSettings) -> tuple[str, ...]:
    """Return the warnings of the start; add what prevents the start to the mistakes."""
    warnings = []
    for name in OF_SECRETS:
        if name not in given:
            continue
        with suppress(OSError):  # a missing or inaccessible file is reported elsewhere
            if (advice := open_to_others(given[name].value, given[name].value.stat())) is None:
                continue
            if given.value("allow_open_secrets"):
                warnings.append(advice)
            else:
                given.mistakes.append(f"{given[name].origin}: {advice}; or, in a container, set allow_open_secrets")
    if given.file is not None and _holds_secret(given, given.file):
        with suppress(OSError):
            if (advice := open_to_others(given.file, given.file.stat())) is not None:
                warnings.append(advice)
    for setting in SETTINGS.values():
        if setting.secret and setting.name in given and given[setting.name].origin == setting.flag:
            text = f"{setting.flag}: every user of this machine can read it in the list of processes"
            warnings.append(f"{text}; give {setting.flag}-file FILE, or set {setting.variable}")
    for setting in (SETTINGS[name] for name in _URLS):
        at = given.get(setting.name)
        if at is not None and at.origin == setting.flag and any("@" in url for url in at.value):
            text = (
                f"{setting.flag}: every user of this machine can read the password in its URL in the list of processes"
            )
            warnings.append(f"{text}; give --nats-password-file FILE, --nats-creds FILE, or set {setting.variable}")
    return tuple(warnings)


def _holds_secret(given: GivenSettings, file: Path) -> bool:
    """True if the config file itself has a secret, or a password in a URL."""
    for name, at in given.items():
        is_secret = SETTINGS[name].secret or (name in _URLS and any("@" in url for url in at.value))
        if is_secret and at.origin == f"{file}: {name}":
            return True
    return False


def plain_beyond_reach(listen: Address, *, has_tls: bool) -> str | None:
    """Return a warning for an address of clients and brokers without TLS, or None."""
    if has_tls or listen.is_loopback:
        return None
    return (
        f"{listen} speaks no TLS: an attacker between this broker and other brokers or clients can read "
        "what is sent, and take over a connection that has logged in. Use a network that you trust, or set tls_cert "
        "(--tls-cert)"
    )


def api_advice(*, is_on: bool, rights: str | None, user: str | None, has_users: bool) -> str | None:
    """Return a warning for settings of JetStream's API that have no effect, or None."""
    if not is_on and (rights is not None or user is not None):
        name = "jetstream_rights" if user is None else "jetstream_user"
        return f"{name} has no effect: JetStream's API is off (--jetstream-api)"
    if user is not None and not has_users:
        return f"jetstream_user {user!r} has no effect until users have to log in (--auth): all callers may do the same"
    return None


def voters_advice(voters: tuple[Voter, ...]) -> str | None:
    """Return a warning for this number of voters, or None."""
    if len(voters) == 2:
        return (
            "a cluster of 2 voters does NOT survive the loss of one: both are needed for every decision, so it fails "
            "more often than a single broker does. Name 3 (--cluster)"
        )
    if len(voters) % 2 == 0 and voters:
        fewer = len(voters) - 1
        return f"a cluster of {len(voters)} voters survives the loss of no more of them than one of {fewer} does"
    return None
