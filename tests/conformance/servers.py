"""The servers that peers' suites talk to: a nats-server with JetStream, or a nats-server and a broker of Penstock.

Rules: everything listens on 127.0.0.1. A server keeps its ports and its folder from one start to the next. With
Penstock, nats-server gets no JetStream: its config is the suite's without what turns JetStream on, plus a port for leaf
nodes, through which a broker delivers.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from penstock.broker.nats.server import find_nats_server
from tests.broker_process import BrokerProcess, Child
from tests.conformance.configs import (
    Login,
    gateway_flags,
    jetstream_login,
    on_loopback,
    wait_for_api,
    with_leaf_port,
    without_jetstream,
)
from tests.ports import free_ports


class System(StrEnum):
    """What answers JetStream's API."""

    NATS_SERVER = "nats-server"
    PENSTOCK = "penstock"


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
            wait_for_api(self.plan.port, self._login())

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

    def _login(self) -> Login | None:
        return jetstream_login(self.plan.blocks.get("accounts", ""))

    def _new_broker(self) -> BrokerProcess | None:
        plan = self.plan
        login = self._login()
        if login is None and "user" in plan.blocks.get("accounts", ""):
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
