"""Parsers for values of settings, from a TOML file, the environment or a flag.

Rules: a parser accepts the types of all three, and raises ValueError with what it expects. The error does not repeat a
value that may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.base import limits
from penstock.base.addresses import Address, parse_address, unwanted
from penstock.base.ids import BrokerId
from penstock.base.units import parse_bytes, parse_duration_ms

EMBEDDED = "embedded"
OFF = "off"
CLIENT_AUTH = (OFF, "optional", "required")  # for client certificates
DISK_THREADS_MAX = 64
BROKER_ID_MAX = 2**31 - 1
BROKERS_MAX = 256
RACK_CHARS_MAX = 128


class Voter(NamedTuple):
    """An initial voter of a cluster; `str()` returns ID@HOST:PORT."""

    broker_id: BrokerId
    address: Address

    def __str__(self) -> str:
        return f"{self.broker_id}@{self.address}"


def plain_beyond_reach(listen: Address, *, has_tls: bool) -> str | None:
    """Return a warning for an address of clients and brokers without TLS, or None."""
    if has_tls or listen.is_loopback:
        return None
    return (
        f"{listen} speaks no TLS: an attacker between this broker and other brokers or clients can read "
        "what is sent, and take over a connection that has logged in. Use a network that you trust, or set tls_cert "
        "(--tls-cert)"
    )


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
