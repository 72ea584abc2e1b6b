"""The servers that peers' suites talk to: a nats-server with JetStream, or a nats-server and a broker of Penstock.

Rules: everything listens on 127.0.0.1. A server keeps its ports and its folder from one start to the next. With
Penstock, nats-server gets no JetStream: its config is the suite's without what turns JetStream on, plus a port for leaf
nodes, through which a broker delivers.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from penstock.broker.config.settings import SETTINGS
from penstock.broker.nats.server import find_nats_server
from tests.broker_process import BrokerProcess, Child
from tests.ports import free_ports

API_SETTING, API_OWNED = "jetstream_api", "auto"
DOMAIN_SETTING = "jetstream_domain"
LEAF_SETTING = "nats_leaf"
_DOMAIN = re.compile(r"\bdomain\s*[:=]?\s*\"?([\w-]+)")
_INSIDE = 2  # depth of an account in the block `accounts`
_JETSTREAM = re.compile(r"\bjetstream\s*[:=]?\s*(?:enabled|true|on|\{[^{}]*\})")
_USER = re.compile(r"\buser\s*:\s*\"?([\w.-]+)\"?(?:\s*,?\s*pass(?:word)?\s*:\s*\"?([\w.-]*))?")


class System(StrEnum):
    """What answers JetStream's API."""

    NATS_SERVER = "nats-server"
    PENSTOCK = "penstock"


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
    wanted = {API_SETTING: API_OWNED, LEAF_SETTING: leaf_url, DOMAIN_SETTING: domain and domain[1]}
    # The gateway is being built: a setting that is not there yet is left out.
    known = {name: value for name, value in wanted.items() if name in SETTINGS and value is not None}
    return [part for name, value in known.items() for part in (f"--{name.replace('_', '-')}", value)]


class Nats(Child):
    """A nats-server on a config file."""

    def __init__(self, config_file: Path) -> None:
        super().__init__()
        self._config_file = config_file

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self._launch([str(find_nats_server()), "-c", str(self._config_file)], os.environ)
        assert self.stderr is not None
        self.stderr.wait_for("Server is ready")

    def stop(self) -> None:
        """Stop it in order."""
        if self.is_running:
            self.signal(signal.SIGTERM)
            self.wait()


@dataclass
class Plan:
    """One server as a suite asks for it; `blocks` are the top-level blocks of its config by their names."""

    name: str
    folder: Path
    port: int
    blocks: dict[str, str]
    cluster_block: str = ""
    wants_jetstream: bool = True
    jetstream_extras: str = ""
    voters: str = ""
    broker_id: int = 1
    broker_listen: str = ""
    ports: dict[str, int] = field(default_factory=dict)


class ManagedServer:
    """One server of an instance: a nats-server, and with Penstock a broker beside it."""

    def __init__(self, system: System, plan: Plan) -> None:
        self.plan = plan
        self._system = system
        self._config_file = plan.folder / "nats-server.conf"
        self._nats = Nats(self._config_file)
        self._leaf_port = plan.ports.get("leafnode") or free_ports(1)[0]
        self._broker = self._new_broker() if system is System.PENSTOCK and plan.wants_jetstream else None
        plan.folder.mkdir(parents=True, exist_ok=True)
        self.write()

    @property
    def is_running(self) -> bool:
        """True while clients can connect."""
        return self._nats.is_running

    @property
    def said(self) -> str:
        """Output of both programs."""
        return self._nats.said + (self._broker.said if self._broker is not None else "")

    def write(self) -> None:
        """Write the config of nats-server."""
        self._config_file.write_text(self._config())

    def start(self) -> None:
        """Start both and wait until they are ready. In a cluster a broker is ready once it has a quorum."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start both; wait for nats-server only."""
        self._nats.start()
        if self._broker is not None:
            self._broker.launch()

    def wait_ready(self) -> None:
        """Wait until the broker is ready."""
        if self._broker is not None:
            assert self._broker.stdout is not None
            try:
                self._broker.stdout.wait_for(r"ready client=")
            except AssertionError as error:
                raise AssertionError(f"{error}\nand on stderr:\n{self._broker.said}") from None

    def stop(self) -> None:
        """Stop both in order: the broker first, so that it says goodbye."""
        if self._broker is not None and self._broker.is_running:
            self._broker.stop()
        self._nats.stop()

    def reload(self) -> None:
        """Let nats-server read its config again."""
        self._nats.signal(signal.SIGHUP)

    def end(self) -> None:
        """Kill both."""
        if self._broker is not None:
            self._broker.end()
        self._nats.end()

    def _new_broker(self) -> BrokerProcess | None:
        plan = self.plan
        accounts = plan.blocks.get("accounts", "")
        login = jetstream_login(accounts)
        if login is None and "user" in accounts:
            return None  # no account has JetStream
        prefix = login.prefix if login is not None else ""
        arguments = gateway_flags(plan.jetstream_extras, f"nats://{prefix}127.0.0.1:{self._leaf_port}")
        if plan.voters:
            arguments += ["--id", str(plan.broker_id), "--cluster", plan.voters]
        broker = BrokerProcess(plan.folder / "data", *arguments, nats=f"nats://{prefix}127.0.0.1:{plan.port}")
        if plan.broker_listen:
            broker.listen = plan.broker_listen
        return broker

    def _config(self) -> str:
        plan = self.plan
        blocks = dict(plan.blocks)
        if self._system is System.PENSTOCK:
            blocks = {name: without_jetstream(block) for name, block in blocks.items()}
            blocks["leafnode"] = with_leaf_port(blocks.get("leafnode", ""), self._leaf_port)
        elif plan.wants_jetstream:
            store = plan.folder / "jetstream"
            blocks["jetstream"] = f'jetstream {{ enabled: true, store_dir: "{store}"\n{plan.jetstream_extras}\n}}'
        blocks = {name: on_loopback(block) for name, block in blocks.items()}
        place = f'server_name: "{plan.name}"\nlisten: "127.0.0.1:{plan.port}"\n'
        return place + "\n".join([blocks.pop("top", ""), plan.cluster_block, *blocks.values()]) + "\n"


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
