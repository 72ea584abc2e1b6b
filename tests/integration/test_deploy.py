"""What deploy/ starts forms a cluster: the same commands with the same settings, as processes of this machine.

Names of machines become ports of this one, and folders of containers become folders of the test; all else is as it is.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest

import penstock
from penstock import aio
from penstock.base.errors import PenstockError
from tests.broker_process import BrokerProcess, NatsProcess, running_nats
from tests.certificates import Authority
from tests.deployments import (
    DEPLOY,
    ROOT,
    compose,
    image_environment,
    manifest,
    pod_environment,
    settings_of,
)
from tests.extent import needs_time
from tests.ports import ports_in_a_row

CERTIFICATES = {
    "PENSTOCK_TLS_CERT": "certs/broker.pem",
    "PENSTOCK_TLS_KEY": "certs/broker.key",
    "PENSTOCK_TLS_CA": "certs/ca.pem",
}


def ports_of(brokers: Collection[object]) -> range:
    """One for each."""
    first = ports_in_a_row(len(brokers))
    return range(first, first + len(brokers))


def make_secrets(folder: Path) -> None:
    """Run the commands of the page on Compose that make the secrets, in a folder of the test."""
    page = (ROOT / "docs/how-to/compose.md").read_text()
    script = page.split("```sh\n")[1].split("```")[0].replace("cd deploy/compose\n", "")
    subprocess.run(["sh", "-euc", script], cwd=folder, check=True)


def moved(environment: Mapping[str, str], own: str, places: Mapping[str, str], folder: Path) -> dict[str, str]:
    """An environment for this machine: `places` has what stands for each address, `own` is this broker's there."""
    found = {}
    for name, value in settings_of(environment).items():
        for there, here in places.items():
            value = value.replace(there, here)
        if name == "PENSTOCK_LISTEN":
            value = own
        elif name == "PENSTOCK_HTTP":
            value = "127.0.0.1:0"
        elif name.endswith("_FILE"):
            value = str(folder / "secrets" / Path(value).name)
        elif name in CERTIFICATES:
            value = str(folder / CERTIFICATES[name])
        elif name == "PENSTOCK_DATA_DIR":
            value = str(folder / f"data-{own.rpartition(':')[2]}")
        found[name] = value
    return found


@contextmanager
def started(brokers: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> Iterator[list[BrokerProcess]]:
    """Each with its arguments behind `serve` and its environment."""
    made = []
    try:
        for arguments, environment in brokers:
            one = BrokerProcess(Path(environment["PENSTOCK_DATA_DIR"]), environment=environment)
            one.arguments = list(arguments)
            one.listen = ""
            made.append(one)
            one.launch()
        yield made
    finally:
        for one in made:
            print(one.said)  # shown where a test fails
            one.end()


def formed(brokers: Sequence[BrokerProcess]) -> None:
    """Once all are ready, and of one cluster."""
    told = []
    for one in brokers:
        assert one.stdout is not None
        told.append(one.stdout.wait_for(r"cluster id=(\d+) voters=(\S+)").groups())
        one.stdout.wait_for(r"^ready client=")  # the metadata leader has registered it
    assert [number for number, _ in told] == ["1", "2", "3"]
    assert len({voters for _, voters in told}) == 1


def stopped(brokers: Sequence[BrokerProcess]) -> None:
    """Once all have ended well."""
    for one in brokers:
        assert one.stop() == 0, one.said


def nats_of_compose(folder: Path) -> str:
    """The nats-server's config, beside the passwords that it includes, on ports of this machine."""
    text = (DEPLOY / "compose/nats-server.conf").read_text()
    text = re.sub(r"^port: .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^http: .*$", "", text, flags=re.MULTILINE)
    return text.replace("./nats-passwords.conf", "../secrets/nats-passwords.conf")


def secret(folder: Path, name: str) -> str:
    return (folder / "secrets" / name).read_text().strip()


async def store(brokers: Sequence[BrokerProcess], server: NatsProcess, folder: Path) -> None:
    """The administrator makes a stream of three copies, and the application's user has a message stored."""
    address = brokers[0].environment["PENSTOCK_LISTEN"]
    admin = penstock.Credentials("admin", secret(folder, "admin-password"))
    has_tls = "PENSTOCK_TLS_CERT" in brokers[0].environment
    tls = penstock.TlsOptions(ca=folder / CERTIFICATES["PENSTOCK_TLS_CA"]) if has_tls else None
    async with await aio.connect(address, credentials=admin, tls=tls) as client:
        info = await client.create_stream("orders", "orders.>", replicas=3)
        assert len(info.partitions[0].replicas) == 3
        app = {"user": "app", "password": secret(folder, "app-password"), "inbox_prefix": b"_INBOX.app"}
        connection = await nats.connect(server.url, **app)
        assert (await connection.jetstream().publish("orders.eu", b"42")).stream == "orders"
        await connection.close()
        assert (await client.get("orders", offset=0)).value == b"42"
    with pytest.raises(PenstockError):
        async with await aio.connect(address, tls=tls) as nobody:
            await nobody.streams()


@needs_time
@pytest.mark.parametrize("over", [(), ("compose.tls.yaml",)], ids=["plain", "tls"])
async def test_the_compose_file_makes_a_cluster(tmp_path: Path, over: tuple[str, ...]) -> None:
    make_secrets(tmp_path)
    Authority(tmp_path / "certs").issue("broker")
    services = {name: one for name, one in compose(*over)["services"].items() if name != "nats"}
    ports = ports_of(services)
    with running_nats(tmp_path / "nats", nats_of_compose(tmp_path)) as server:
        places = {f"{name}:7422": f"127.0.0.1:{port}" for name, port in zip(services, ports, strict=True)}
        places["nats://nats:4222"] = server.url
        brokers = []
        for one, port in zip(services.values(), ports, strict=True):
            environment = {**image_environment(), **one["environment"]}
            brokers.append((one["command"][1:], moved(environment, f"127.0.0.1:{port}", places, tmp_path)))
        with started(brokers) as running:
            formed(running)
            await store(running, server, tmp_path)
            stopped(running)


@needs_time
@pytest.mark.parametrize("kustomization", ["kubernetes", "kubernetes-tls"])
async def test_the_pods_make_a_cluster(tmp_path: Path, kustomization: str) -> None:
    make_secrets(tmp_path)
    Authority(tmp_path / "certs").issue("broker")
    (tmp_path / "secrets" / "http-token").write_text("a token for the test, long enough for anybody\n")
    stateful = manifest("StatefulSet", kustomization)
    ordinals = range(1, stateful["spec"]["replicas"] + 1)
    ports = ports_of(ordinals)
    with running_nats(tmp_path / "nats", nats_of_compose(tmp_path)) as server:
        places = {
            f"penstock-{ordinal}.penstock.prod.svc:7422": f"127.0.0.1:{port}"
            for ordinal, port in zip(ordinals, ports, strict=True)
        }
        places["nats://nats:4222"] = server.url
        arguments = stateful["spec"]["template"]["spec"]["containers"][0]["args"][1:]
        brokers = []
        for ordinal, port in zip(ordinals, ports, strict=True):
            environment = {**image_environment(), **pod_environment(ordinal, f"node-{ordinal}", folder=kustomization)}
            brokers.append((arguments, moved(environment, f"127.0.0.1:{port}", places, tmp_path)))
        with started(brokers) as running:
            formed(running)
            await store(running, server, tmp_path)
            stopped(running)
