"""Configs of nats-server without JetStream, and what a broker beside it is told.

Rules: this module imports little. The stand-in for nats-server imports it, and some suites wait five seconds only.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.broker.config.settings import SETTINGS

API_SETTING, API_OWNED = "jetstream_api", "auto"
RIGHTS_SETTING, ALL_RIGHTS = "jetstream_rights", "manage"
DOMAIN_SETTING = "jetstream_domain"
LEAF_SETTING = "nats_leaf"
API_S = 10.0
"""Longest wait for a broker that takes JetStream's API over, after it is ready."""
_LOOK_S = 0.05
_DOMAIN = re.compile(r"\bdomain\s*[:=]?\s*\"?([\w-]+)")
_INSIDE = 2  # depth of an account in the block `accounts`
_JETSTREAM = re.compile(r"\bjetstream\s*[:=]?\s*(?:enabled|true|on|\{[^{}]*\})")
_USER = re.compile(r"\buser\s*:\s*\"?([\w.-]+)\"?(?:\s*,?\s*pass(?:word)?\s*:\s*\"?([\w.-]*))?")


@dataclass(frozen=True)
class Login:
    """A user of nats-server, in the account that has JetStream."""

    user: str
    password: str

    @property
    def prefix(self) -> str:
        return f"{self.user}:{self.password}@"


def without_jetstream(config: str) -> str:
    """Return a config of nats-server in which no account and no server has JetStream."""
    return _JETSTREAM.sub("", config)


def jetstream_login(accounts: str) -> Login | None:
    """Return the first user of the first account that has JetStream; None where no account has it."""
    for account in _blocks_inside(accounts):
        user = _USER.search(account)
        if user is not None and _JETSTREAM.search(account) is not None:
            return Login(user[1], user[2] or "")
    return None


def _blocks_inside(config: str) -> Iterator[str]:
    """Yield the blocks in braces that are inside the outer ones."""
    depth = start = 0
    for place, letter in enumerate(config):
        if letter == "{":
            depth += 1
            start = place if depth == _INSIDE else start
        elif letter == "}":
            if depth == _INSIDE:
                yield config[start : place + 1]
            depth -= 1


def gateway_flags(jetstream: str, leaf_url: str) -> list[str]:
    """Return the flags of `penstock serve` for JetStream's API; `jetstream`: where a config may name a domain."""
    domain = _DOMAIN.search(jetstream)
    wanted = {API_SETTING: API_OWNED, RIGHTS_SETTING: ALL_RIGHTS, LEAF_SETTING: leaf_url}
    wanted |= {DOMAIN_SETTING: domain[1]} if domain is not None else {}
    # The gateway is being built: a setting that is not there yet is left out.
    known = {name: value for name, value in wanted.items() if name in SETTINGS}
    return [part for name, value in known.items() for part in (f"--{name.replace('_', '-')}", value)]


def on_loopback(block: str) -> str:
    """Return a block of a listener, such as `leafnodes`, that listens on loopback if it names a port without a host."""
    if re.search(r"\b(host|listen)\b", block) or not re.search(r"\bport\s*:", block):
        return block
    return re.sub(r"^(\s*\w+\s*)\{", r'\1{ host: "127.0.0.1", ', block, count=1)


def with_leaf_port(config: str, port: int) -> str:
    """Return a config in which nats-server listens for leaf nodes on loopback, if it does not yet."""
    block = re.search(r"\bleafnodes\s*[:=]?\s*\{[^}]*", config)
    if block is None:
        return f'{config}\nleafnodes {{ listen: "127.0.0.1:{port}" }}\n'
    if re.search(r"\b(port|listen)\s*:", block[0]):
        return config
    opened = re.sub(r"\{", f'{{ listen: "127.0.0.1:{port}", ', block[0], count=1)
    return config[: block.start()] + opened + config[block.end() :]


def wait_for_api(port: int, login: Login | None) -> None:
    """Return once JetStream's API answers on this port of nats-server, or after API_S: the tests will tell."""
    user = {} if login is None else {"user": login.user, "pass": login.password}
    connect = {"verbose": False, "headers": True, "no_responders": True, **user}
    deadline_s = time.monotonic() + API_S
    with socket.create_connection(("127.0.0.1", port), timeout=API_S) as connection:
        connection.sendall(f"CONNECT {json.dumps(connect)}\r\nSUB _INBOX.conformance 1\r\n".encode())
        said = b""
        while time.monotonic() < deadline_s and b"-ERR" not in said:
            connection.sendall(b"PUB $JS.API.INFO _INBOX.conformance 0\r\n\r\n")
            said = b""
            try:
                while not re.search(rb"MSG _INBOX|-ERR", said):
                    if not (data := connection.recv(1 << 16)):
                        return
                    said += data
            except TimeoutError:
                return
            if b" 503" not in said:
                return
            time.sleep(_LOOK_S)
