"""Every command and program of the README, the how-to pages and the tutorials runs, in the order of its page.

Rules: a page's commands run in one folder, against a broker, and end with exit code 0 (or as ENDS says) without a
traceback. Programs that serve until Ctrl-C are in SERVERS; a step that needs what one of them did is in HEARD. What
cannot run here is in ELSEWHERE, with the test that runs it or the reason; its `penstock` commands are
parsed. GIVEN has what a page takes for granted, in commands as on the page.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import typer

from penstock.broker.config.config import load
from tests.cli_app import root_command
from tests.docs.pages import FILE, PAGES, PYTHON, ROOT, Reader, Step, blocks, penstock_commands, settings_of, steps
from tests.extent import each_change, needs_time


def appended(stream: str, rows: int, partition: int = 0, **row: str) -> str:
    """A program that appends the same row often."""
    return f"""import penstock
with penstock.connect() as client:
    client.append({stream!r}, [{dict(row, value="1")}] * {rows}, partition={partition})
"""


SERVE = ("penstock serve",)
ORDERS = (
    *SERVE,
    "penstock stream create orders 'orders.>'",
    """penstock publish orders.eu.1 '{"total": 42, "city": "Bern", "amount": 7}' --key customer-7 --count 3""",
)
ADMIN = (
    "penstock serve --auth",
    "export PENSTOCK_CREDENTIALS=penstock-data/admin.credentials",
    "penstock stream create orders 'orders.>'",
)
BILLING = (*ADMIN, "penstock user add billing --token --out billing.token")

CLUSTER = (
    "nats-server -a 127.0.0.1 -p 4222",
    *(
        f"penstock serve --id {n} --cluster 1@127.0.0.1:7431,2@127.0.0.1:7432,3@127.0.0.1:7433"
        f" --nats nats://127.0.0.1:4222 --data-dir ./{name}"
        for n, name in enumerate(("one", "two", "three"), 1)
    ),
    "export PENSTOCK_SERVER=127.0.0.1:7431,127.0.0.1:7432,127.0.0.1:7433",
    "penstock wait --ready",
)

IN_JETSTREAM = """import asyncio, nats
async def main():
    connection = await nats.connect()
    js = connection.jetstream()
    for name, subjects in (("ORDERS", ["orders.>"]), ("MIXED", ["eu.*", "us.*"])):
        await js.add_stream(name=name, subjects=subjects)
    for number in range(50):
        await js.publish("orders.eu", str(number).encode())
    await js.publish("eu.x", b"1")
    await js.publish("us.x", b"2")
    await (await js.create_key_value(bucket="settings")).put("color", b"red")
    await (await js.create_object_store(bucket="files")).put("report", b"x" * 300_000)
    await connection.close()
asyncio.run(main())
"""

CONTRACT = """printf 'namespace py shop\n\nstruct Order {{ 1: required string id (key); {fields} }}\n\n\
scope Orders prefix shop.{{{variable}}} {{ Placed: Order (stream = "orders") }}\n' > contracts/orders.frugal"""

TYPED = (
    *SERVE,
    "file typed-services/shop.frugal",
    "penstock idl compile shop.frugal --out .",
    "penstock stream create order-events 'frugal.shop.*.OrderEvents.OrderPlaced'",
)
"""The contract of the tutorial."""
DESCRIPTORS = """from pathlib import Path
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
order = file.message_type.add(name="Order")
for number, (name, kind) in enumerate([("id", 9), ("customer", 9), ("cents", 3)], 1):
    order.field.add(name=name, number=number, type=kind, label=1)
Path("shop.binpb").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
"""
"""What `protoc` writes of a message Order."""
TYPED_ORDERS = (*TYPED, "file typed-services/orders.py", "python orders.py")

Command = typer.core.TyperCommand | typer.core.TyperGroup
PROGRAM: Command = root_command()

SALE = "".join(
    text for language, text in blocks(PAGES["typed-columns"].read_text(encoding="utf-8")) if language == "json"
)

GIVEN: dict[str, tuple[str, ...]] = {
    "README": (),
    "access": (*ADMIN, "export PENSTOCK_CREDENTIALS="),
    "acl": BILLING,
    "archive": (
        *ORDERS,
        "penstock stream create readings 'readings.>'",
        """echo '{"type": "record", "name": "reading", "fields": [{"name": "celsius", "type": "int"}]}' """
        "> reading.avsc",
        "penstock stream create measured 'measured.>'",
        "penstock schema register measured reading.avsc",
    ),
    "audit-log": ADMIN,
    "backup": ORDERS,
    "call-service": TYPED_ORDERS,
    "check-contracts": (
        "mkdir -p contracts && git init -q -b main .",
        CONTRACT.format(variable="region", fields="2: i32 amount; 3: string note"),
        "mkdir -p releases && cp -r contracts releases/1 && cp -r contracts releases/2",
        "mkdir -p tmp && git add contracts && git -c user.name=me -c user.email=me@example.com commit -q -m one",
        CONTRACT.format(variable="country", fields="2: i64 amount; 4: optional bool sent"),
        DESCRIPTORS,
        "cp shop.binpb old.binpb && cp shop.binpb new.binpb",
    ),
    "clock-ahead": ORDERS,
    "cluster": (),
    "compile-contracts": (
        "file typed-services/shop.frugal",
        "mkdir contracts && cp shop.frugal contracts && git init -q .",
        DESCRIPTORS,
    ),
    "compose": CLUSTER,
    "compression": ORDERS,
    "consumer-groups": ORDERS[:2],
    "consumers": ("penstock serve --jetstream-api auto", *ORDERS[1:]),
    "copy": (*ORDERS[:2], appended("orders", 1001, subject="orders.eu.1")),
    "dead-letters": ("penstock serve --jetstream-api auto", *ORDERS[1:]),
    "disaster-recovery": (
        *ADMIN,
        "penstock backup backup",
        "cp penstock-data/admin.credentials admin.credentials",
    ),
    "doctor": ORDERS,
    "duplicates": ORDERS,
    "durable-events": TYPED[:-1],
    "embedded-nats-login": ADMIN,
    "encryption": (),
    "expected-sequence": ORDERS[:2],
    "export": ORDERS,
    "keep-until-archived": (
        *SERVE,
        "penstock stream create trades 'trades.>' --max-age 7d --retain until-archived",
        appended("trades", 120_000, subject="trades.a"),
    ),
    "monitor": ADMIN,
    "move-from-frugal": (*SERVE, "file typed-services/shop.frugal"),
    "move-from-jetstream": (
        "nats-server -a 127.0.0.1 -p 4222 -js -sd jetstream",
        IN_JETSTREAM,
    ),
    "no-leader": ORDERS,
    "order-by-key": ("penstock serve --jetstream-api auto", *ORDERS[1:]),
    "pause-and-seal": (*ORDERS, "penstock stream create orders-2025 orders-2025"),
    "quotas": BILLING,
    "read-replicas": (*CLUSTER, "penstock stream create news news --replicas 1", appended("news", 2)),
    "read-from-any-language": (
        "penstock serve --jetstream-api auto",
        "penstock stream create sales 'sales.>'",
        """penstock publish sales.eu '{"total": 42}' --count 2""",
    ),
    "relay": (
        *SERVE,
        "penstock stream create sessions 'sessions.>' --allow-message-ttl yes",
        "penstock publish sessions.eu token --header 'Nats-TTL=1h' --count 50",
    ),
    "repair": ORDERS,
    "replace-broker": (*CLUSTER, 'kill -KILL "$(cat two/LOCK)"'),
    "replay": (*ORDERS, "penstock archive orders --to lake"),
    "restore": (*ORDERS, "penstock backup backup"),
    "retention": (
        *SERVE,
        "penstock stream create orders orders --partitions 3",
        appended("orders", 120_001, partition=2),
    ),
    "rolling-restart": ORDERS,
    "rotate-credentials": BILLING,
    "schedule-pipelines": ORDERS,
    "schemas": (*ADMIN, "penstock user add ci --token --out ci.token"),
    "secret-files": ("touch cluster.secret admin.password billing.token",),
    "services-over-http": TYPED,
    "spark-cluster": (*ADMIN, "penstock stream create big-orders big.orders"),
    "sql": ORDERS,
    "tls": (),
    "typed-columns": (*SERVE, f"echo '{SALE}' > sale.json"),
    "typed-events-in-spark": ORDERS[:2],
    "typed-events": TYPED,
    "typed-services": (),
    "verify": (*ORDERS, "mkdir disks", "for n in 1 2 3; do cp -r penstock-data disks/$n; done"),
    "write-service": TYPED,
}
"""What a page takes for granted, by its name; SERVE if it is not named."""

GIVEN_SERVERS = {"python orders.py": "orders: ready"}
"""The programs of GIVEN that serve until Ctrl-C, and what each prints when it is ready."""

WRONG_SEQUENCE = "BadRequestError: code=400 err_code=10071 description='wrong last sequence: 2'"

ENDS: dict[tuple[str, str], tuple[int, str]] = {
    ("README", "python 1"): (0, "stored at offset 1 on the disk: True"),
    ("acl", "penstock acl test billing append --stream orders --subject orders.us.1"): (1, "denied"),
    ("append-once", "python 1"): (0, "0 1000"),
    ("append-once", "python 2"): (0, "2000"),
    ("append-once", "python 3"): (0, "producer_fenced"),
    ("call-service", "python 1"): (0, "4200\n100\nat most 100000\n"),
    ("call-service", "python 2"): (0, "4200\n"),
    ("call-service", "python 3"): (
        0,
        "after 3 tries: no server is subscribed to 'services.nowhere'\nstart billing.py first\n",
    ),
    ("call-service", "python 4"): (0, "place services.orders orders\n"),
    ("check-contracts", "penstock idl check old/contracts contracts"): (1, "2 of 4 changes in 1 contract break"),
    ("check-contracts", "penstock idl check old/contracts contracts --mode backward"): (1, "1 of 4 changes"),
    ("check-contracts", "penstock idl check releases/1 releases/2 contracts"): (1, "2 of 4 changes"),
    ("check-contracts", "penstock idl check old/contracts contracts --allow field-removed:Order.note"): (1, "1 of 4"),
    ("check-contracts", "penstock idl check old/contracts contracts --json"): (1, '"rule":"field-removed"'),
    ("compile-contracts", "penstock idl compile wrong.frugal --out src"): (2, "wrong.frugal:4:5: there is no type"),
    ("compile-contracts", "python src/client.py"): (0, "Order(id='1', customer='anna', cents=4200, note=None) place\n"),
    ("compile-contracts", "python 1"): (0, "Order(id='1', customer='anna', cents=4200, note=None)\n"),
    ("compile-contracts", "python 2"): (0, "id: string\ncustomer: string\ncents: int64\n"),
    ("durable-events", "python mailer.py"): (0, "mail to anna\nmail to carl\n2 handled, 2 dead letters\n"),
    ("durable-events", "penstock read order-events-dead --format json"): (
        0,
        "the mail server is down",
    ),
    ("durable-events", "python repair.py"): (0, "mail for order 1"),
    ("expected-sequence", "python 1"): (1, f"nats.js.errors.BadRequestError: nats: {WRONG_SEQUENCE}"),
    ("key-value-and-objects", "python 1"): (0, "b'blue' ['color']\ncolor b'blue'\n300000\n"),
    ("key-value-and-objects", "python 2"): (0, "b'blue' [b'color']\n"),
    ("last-messages-of-each-subject", "penstock publish tasks.7 second"): (1, "maximum messages per subject exceeded"),
    ("more-partitions", "penstock stream show deliveries"): (0, "2, then 4"),
    ("typed-columns", "penstock tail sales --no-follow --decode schema --format json"): (
        0,
        '"value":{"shop":"bern","total":7.5',
    ),
    (
        "typed-columns",
        """penstock sql 'SELECT "offset", decode_error FROM sales WHERE decode_error IS NOT NULL' --decode schema""",
    ): (0, "(first: offset 2; shop: a string is expected, a number is found)"),
    ("dead-letters", "python 1"): (0, "terminated orders.eu.1\n"),
    ("order-by-key", "python 1"): (0, 'b\'customer-7\' b\'{"total": 42, "city": "Bern", "amount": 7}\'\n' * 3),
    ("order-by-key", "python 2"): (0, 'b\'{"total": 42, '),
    ("partitions", "penstock nats-config events"): (0, "{{partition(4,1)}}"),
    ("last-value", "python 1"): (0, "b'18'\nmachines.a.temperature b'18'\nmachines.b.temperature b'21'\n"),
    ("filter-subjects", "penstock stream count fleet 'fleet.ch.>'"): (0, "2\n"),
    ("filter-subjects", "python 1"): (0, "fleet.ch.4712.position 1 1 1\n3\n1\n"),
    ("filter-subjects", "python 2"): (0, "3 subjects up to fleet.de.17.position\n"),
    ("delete-messages", "python 3"): (0, "1\n"),
    ("several-subjects", "penstock stream show trade"): (0, "orders.>, rates.*"),
    ("several-subjects", "python 1"): (0, "('shop.>', 'parcels.>')"),
    ("publish-many", "python 1"): (0, "9999"),
    ("publish-many", "python 2"): (0, "19999"),
    ("publish-many", "python 3"): (0, "stream_not_found\n['nowhere.1']"),
    ("publish-many", "python 4"): (0, "30001"),
    ("publish-many", "python 5"): (0, "100000"),
    ("read-from-any-language", "python 1"): (0, "sales.eu 1 b'{\"total\": 42}'\nsales.eu 2 "),
    ("read-replicas", "python 1"): (0, "0 b'1'\n1 b'1'\n2\n"),
    ("read-replicas", "penstock stream show news"): (0, "observed by"),
    ("services-over-http", "python 1"): (0, "4200\n"),
    ("typed-events", "python 1"): (
        0,
        "'Frugal-Timeout-Ms': '5000', 'Frugal-Topic-region': 'eu', 'tenant': 'acme', 'Penstock-Schema': '50c865e2",
    ),
    ("write-service", "python ask.py"): (
        0,
        "4200 EUR\nthe call has no header 'authorization'",
    ),
    ("typed-services", "python place.py anna 4200"): (0, "customer='anna', cents=4200, note=None)"),
    ("typed-services", "python place.py anna 420000"): (0, "refused: the limit is 100000\n"),
    ("typed-services", "python balance.py"): (0, "anna owes 4300\n"),
    ("typed-services", "penstock idl check released/shop.frugal shop.frugal"): (1, " shop.frugal:8:5  Order.cents "),
    ("typed-services", "penstock read order-events --decode schema"): (0, '"customer":"anna"'),
    ("typed-services", "python 1"): (0, "1       1     anna    100      NaN\n"),
    ("table", "python 1"): (0, "b'11' None 1\nb'apple' b'11' 2\n"),
    ("table", "python 2"): (0, "b'12'\n"),
    ("table", "python 3"): (0, "b'apple' b'13'\n"),
}
"""The exit code of a step and what it prints, where the page says it."""

SERVERS: dict[tuple[str, str], str] = {
    ("services-over-http", "python http_service.py"): "billing: ready",
    ("typed-services", "python orders.py"): "orders: ready",
    ("typed-services", "python billing.py"): "billing: ready",
    ("write-service", "python billing_service.py"): "billing: ready",
}
"""The programs that serve until Ctrl-C, by page and command, and what each prints when it is ready."""

HEARD: dict[tuple[str, str], tuple[str, str]] = {
    ("typed-services", "python place.py anna 100"): ("python billing.py", "anna in eu owes 4200"),
    ("typed-services", "python balance.py"): ("python billing.py", "anna in eu owes 4300"),
}
"""By page and step: the server that must have printed something before the step, and what."""

MACHINES = "other machines"
CONTAINERS = "starts containers, as tests/integration/test_image.py and test_deploy.py do where there is Docker"
MINUTES = "takes minutes"
INSTALLS = "installs programs on this machine"
NOT_OURS = "a program that Penstock does not bring"
FIXED_PORTS = "a config with ports that may be taken on this machine"
SPARK = "starts Spark, which tests/spark runs"

ELSEWHERE: dict[str, dict[str, str]] = {
    "README": {
        "pip install *": INSTALLS,
        "nats *": "tests/docs/test_other_languages.py::test_the_programs_of_a_page_do_what_they_say",
    },
    "access": {
        "penstock user add admin --admin": "another way to the first user",
    },
    "add-broker": {
        "penstock serve *": MACHINES,
    },
    "archive": {
        "penstock pipeline archive *": SPARK,
    },
    "audit": {
        "penstock pipeline audit orders": SPARK,
        "penstock pipeline audit orders --against lake": "tests/docs/test_archive.py::test_the_pages_do_what_they_say",
        "python 1": "tests/docs/test_archive.py::test_the_pages_do_what_they_say",
    },
    "benchmark": {
        "pip install *": INSTALLS,
        "penstock bench *": MINUTES,
    },
    "benchmark-kafka": {
        "bin/kafka-*": "starts Kafka",
        "penstock bench *": MINUTES,
    },
    "benchmark-liftbridge": {
        "liftbridge *": "starts Liftbridge",
        "nats-server *": "starts Liftbridge",
        "penstock bench *": MINUTES,
    },
    "benchmark-replicas": {
        "penstock bench *": MINUTES,
    },
    "beside-jetstream": {
        "*": "tests/integration/test_jetstream_ownership.py::test_beside_a_jetstream_only_the_domain_is_served",
    },
    "bridge-jetstream": {
        "*": "tests/docs/test_bridge_jetstream.py::test_the_page_does_what_it_says",
    },
    "broker-authentication": {
        "penstock serve *": MACHINES,
    },
    "build": {
        "apt install *": INSTALLS,
        "pip install *": INSTALLS,
        "python setup.py *": "builds, as tests/unit/test_build.py does",
        "make fuzz *": MINUTES,
    },
    "change-broker-address": {
        "penstock serve *": MACHINES,
    },
    "call-service": {
        "nats micro *": NOT_OURS,
    },
    "chaos": {
        "make chaos*": MINUTES,
    },
    "check-contracts": {
        "buf *": NOT_OURS,
    },
    "cluster": {
        "nats-server -a 10.0.0.9 *": MACHINES,
        "penstock serve --id 1 --cluster 1@10.*": MACHINES,
        "penstock status --server 10.*": MACHINES,
    },
    "compile-contracts": {
        "protoc *": NOT_OURS,
        "buf *": NOT_OURS,
    },
    "compose": {
        "cd deploy/compose": CONTAINERS,
        "docker *": CONTAINERS,
        "export PENSTOCK_TLS_CA=*": CONTAINERS,
    },
    "consumer-groups": {
        "python 2": "tests/docs/test_consumer_groups.py::test_the_page_does_what_it_says",
    },
    "disaster-recovery": {
        "export PENSTOCK_SERVER=*": MACHINES,
        "* restore backup --users *": MACHINES,
        "penstock serve *": MACHINES,
        "python 1": MACHINES,
    },
    "docker": {
        "docker *": CONTAINERS,
    },
    "doctor": {
        "* --data-dir /var/lib/penstock": MACHINES,
    },
    "embedded-nats-login": {
        "nats-top *": NOT_OURS,
    },
    "fuzz": {
        "*": MINUTES,
    },
    "key-value-and-objects": {
        "nats *": "tests/docs/test_other_languages.py::test_the_programs_of_a_page_do_what_they_say",
    },
    "kubernetes": {
        "kubectl *": MACHINES,
    },
    "many-cores": {
        "penstock serve --brokers 4": "tests/docs/test_many_cores.py::test_its_commands_work",
        "export PENSTOCK_SERVER=*": "tests/docs/test_many_cores.py::test_its_commands_work",
        "penstock serve --brokers 4 --id *": "tests/docs/test_many_cores.py::test_its_machines_make_one_cluster",
    },
    "measure-latency": {
        "pip install *": INSTALLS,
        "penstock bench *": MINUTES,
    },
    "deliver-over-leaf": {
        "penstock *": "tests/integration/test_leaf_broker.py::test_the_page_does_what_it_says",
    },
    "move-a-jetstream-application": {
        "*": "tests/docs/test_move_a_jetstream_application.py::test_the_application_says_the_same",
    },
    "move-from-jetstream": {
        "* --skip-unstorable": "tests/docs/test_move_from_jetstream.py::test_the_page_does_what_it_says",
    },
    "nats-permissions": {
        "penstock doctor *": (
            "tests/integration/test_doctor.py::test_the_configuration_on_the_page_works_and_is_found_well"
        ),
        "python 1": MACHINES,
    },
    "one-history": {
        "python *": "tests/docs/test_archive.py::test_the_pages_do_what_they_say",
    },
    "read-from-any-language": {
        "nats-server -c nats-server.conf": FIXED_PORTS,
        "penstock serve --id *": FIXED_PORTS,
        "nats *": "tests/docs/test_other_languages.py::test_the_programs_of_a_page_do_what_they_say",
    },
    "read-the-files": {
        "*": "tests/docs/test_read_the_files.py::test_the_recipes_do_what_they_say",
    },
    "release": {
        "make wheels*": MINUTES,
    },
    "replace-broker": {
        "* --join 10.0.0.1:7422 *": MACHINES,
    },
    "replay": {
        "penstock pipeline replay *": SPARK,
    },
    "typed-events-in-spark": {
        "python *": "tests/docs/test_typed_events_in_spark.py::test_the_page_does_what_it_says",
    },
    "schedule-pipelines": {
        "sudo *": INSTALLS,
        "systemctl *": INSTALLS,
        "kubectl *": MACHINES,
    },
    "secure": {
        "*": "tests/docs/test_secure.py::test_a_cluster_as_on_the_page_holds_what_it_says",
    },
    "shell-completion": {
        "penstock --install-completion": "changes the user's shell",
    },
    "spark": {
        "pip install *": INSTALLS,
        "penstock *": "tests/docs/test_tutorial_spark.py::test_the_tutorial_does_what_it_says",
        "python *": "tests/docs/test_tutorial_spark.py::test_the_tutorial_does_what_it_says",
    },
    "spark-cluster": {
        "*spark:*": MACHINES,
        "pip *": INSTALLS,
        "(cd src *": INSTALLS,
        "spark=*": MACHINES,
        "export SPARK_LOCAL_IP=*": MACHINES,
        "$spark/*": MACHINES,
        "python *": MACHINES,
    },
    "sql": {
        "pip install *": INSTALLS,
    },
    "systemd": {
        "sudo *": INSTALLS,
        "systemctl *": INSTALLS,
        "journalctl *": INSTALLS,
    },
    "table": {
        "penstock pipeline table *": SPARK,
    },
    "test-with-the-simulator": {
        "*": (
            "tests/docs/test_test_with_the_simulator.py"
            "::test_a_seed_finds_the_mistake_and_none_finds_one_in_the_mended_service"
        ),
    },
    "tls": {
        "* 1@a.example.com*": "tests/docs/test_tls.py::test_its_cluster_can_be_started",
    },
    "tracing": {
        "pip install *": INSTALLS,
    },
    "typed-services": {
        "pip install *": INSTALLS,
        "python 2": "tests/docs/test_typed_services.py::test_spark_reads_the_events_of_the_tutorial",
    },
    "write-from-spark": {
        "*": "tests/docs/test_write_from_spark.py::test_the_page_does_what_it_says",
    },
}
"""What does not run here, by page and pattern (as of a shell): the test that runs it, or the reason."""


def elsewhere(page: str, step: Step) -> list[str]:
    """The patterns of ELSEWHERE for a step."""
    return [pattern for pattern in ELSEWHERE.get(page, ()) if fnmatchcase(step.name, pattern.replace("[", "[[]"))]


def steps_of(page: str) -> list[Step]:
    return steps(PAGES[page].read_text(encoding="utf-8"))


def given(line: str) -> Step:
    """The step of a line of GIVEN: a command, a program, or `file PAGE/NAME`, a file of another page."""
    if line.startswith(FILE):
        page, _, name = line.removeprefix(FILE).partition("/")
        return next(step for step in steps_of(page) if step.name == f"{FILE}{name}")
    return Step(PYTHON if "import" in line else line, line)


RUN = [page for page in PAGES if any(not elsewhere(page, step) for step in steps_of(page))]
READ_FIRST = ("README", "consumer-groups", "consumers")
"""Pages that run at each change. The others take two seconds of CPU each, and run in turns."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=each_change if page in READ_FIRST else needs_time) for page in RUN]
)
def test_the_commands_of_a_page_run(tmp_path: Path, page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    reader = Reader(tmp_path)
    try:
        for line in GIVEN.get(page, SERVE):
            if line in GIVEN_SERVERS:
                reader.start(Step(line, line), GIVEN_SERVERS[line])
            else:
                reader.run(given(line))
        if "other:7422" in text:
            reader.other_broker()
        for step in steps(text):
            place = (page, step.name)
            if place in HEARD:
                reader.wait(*HEARD[place])
            if place in SERVERS:
                reader.start(step, SERVERS[place])
            elif not elsewhere(page, step):
                code, said = ENDS.get(place, (0, ""))
                reader.run(step, code, said)
    finally:
        reader.end()


@pytest.mark.parametrize("page", PAGES)
def test_what_does_not_run_can_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cluster.secret", "admin.password"):
        (tmp_path / name).write_text("a secret that is long enough for all of it\n")
    for step in steps_of(page):
        patterns = elsewhere(page, step)
        if step.is_program or step.is_file or not (patterns or "--every" in step.name or "--follow" in step.name):
            continue
        for words in penstock_commands(step.name):
            parse(words)
            if words[0] == "serve" and not any("::" in ELSEWHERE[page][pattern] for pattern in patterns):
                load(environment={}, flags=settings_of(words[1:]))


def parse(words: list[str]) -> None:
    """Parse the arguments of `penstock` as a run would, but call nothing: `--install-completion` would install."""
    command: Command = PROGRAM
    context = typer.Context(command, info_name="penstock")
    while True:
        values, words, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.get_params(context):
            if parameter.callback is None and parameter.name in values:
                parameter.handle_parse_result(context, values, [])  # raises for a wrong value
        if not isinstance(command, typer.core.TyperGroup) or not words:
            assert not words, f"not taken: {words}"
            return
        name, found, words = command.resolve_command(context, words)
        command = found  # type: ignore[assignment]
        context = typer.Context(command, info_name=name, parent=context)


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_is_there(page: str) -> None:
    path = PAGES[page]
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


def test_the_tables_name_what_there_is() -> None:
    used = {(page, pattern) for page in PAGES for step in steps_of(page) for pattern in elsewhere(page, step)}
    assert {(page, pattern) for page, patterns in ELSEWHERE.items() for pattern in patterns} - used == set()
    named = (*ENDS, *SERVERS, *HEARD)
    assert [(page, name) for page, name in named if name not in {step.name for step in steps_of(page)}] == []
    assert {(page, server) for (page, _), (server, _) in HEARD.items()} - SERVERS.keys() == set()
    assert set(GIVEN) - set(RUN) == set()


@pytest.mark.parametrize(
    ("page", "test"),
    [(page, test) for page, patterns in ELSEWHERE.items() for test in sorted(set(patterns.values())) if "::" in test],
)
def test_a_test_that_is_named_is_there(page: str, test: str) -> None:
    file, _, name = test.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(?:async )?def {name}\(", text, flags=re.MULTILINE)
    assert f"{page}.md" in text
