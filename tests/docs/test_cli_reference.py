"""The reference is what the code says, and every command has help that a newcomer can live on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
import penstock.ops
from penstock.broker.config.config import load
from penstock.broker.config.settings import SETTINGS
from tests.cli_app import app
from tests.docs.reference.cli_reference import (
    cli_reference,
    commands,
    config_reference,
    contract_changes_page,
    errors_page,
    jetstream_api_page,
)
from tests.docs.reference.python_reference import python_reference
from tests.docs.reference.spark_reference import spark_reference
from tests.extent import each_change

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = {" ".join(path): command for path, command in commands()}
REMAKE = "python -m tests.docs.reference docs/reference"


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("cli.md", cli_reference),
        ("config.md", config_reference),
        ("contract-changes.md", contract_changes_page),
        ("errors.md", errors_page),
        ("jetstream-api.md", jetstream_api_page),
        ("python.md", python_reference),
        ("spark.md", spark_reference),
    ],
)
def test_the_reference_is_what_the_code_says(name: str, made) -> None:
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == made(), f"remake it: {REMAKE}"


def test_the_commands_that_people_were_promised_are_there() -> None:
    stream = {
        f"penstock stream {name}"
        for name in (
            "create",
            "list",
            "show",
            "alter",
            "delete",
            "delete-message",
            "find",
            "subjects",
            "count",
            "last",
            "forget-archive",
            "purge",
            "delete-message",
            "copy",
            "pause",
            "resume",
            "read-only",
            "seal",
        )
    }
    others = {
        f"penstock {name}"
        for name in (
            "archive",
            "backup",
            "restore",
            "serve",
            "demo",
            "certs",
            "doctor",
            "health",
            "nats-config",
            "publish",
            "read",
            "relay",
            "sql",
            "tail",
            "status",
            "wait",
            "dump",
            "verify",
            "stream",
            "cluster",
            "bench",
            "user",
            "acl",
            "group",
            "consumer",
            "import",
            "keys",
            "pipeline",
            "idl",
            "schema",
        )
    }
    pipeline = {f"penstock pipeline {name}" for name in ("archive", "audit", "replay", "run", "table")}
    idl = {f"penstock idl {name}" for name in ("compile", "check", "docs")}
    schemas = {f"penstock schema {name}" for name in ("register", "list", "show", "forget")}
    groups = {f"penstock group {name}" for name in ("list", "show", "reset", "delete")}
    consumers = {
        f"penstock consumer {name}" for name in ("ls", "info", "peek", "create", "pause", "resume", "reset", "delete")
    }
    groups |= consumers
    cluster = {f"penstock cluster {name}" for name in ("features", "api", "take-api", "upgrade")}
    keys = {f"penstock keys {name}" for name in ("list", "new", "rewrap")}
    users = {f"penstock user {name}" for name in ("add", "list", "rotate", "limit", "delete")}
    rules = {f"penstock acl {name}" for name in ("add", "list", "delete", "test")}
    bench = {
        f"penstock bench {name}"
        for name in (
            "compaction",
            "compression",
            "decode",
            "latency",
            "limits",
            "many",
            "partitions",
            "reach",
            "read-replicas",
            "api-readers",
            "consumers",
            "replicated",
            "report",
            "scale",
            "spark",
            "key-values",
            "subjects",
            "throughput",
            "tls",
        )
    }
    assert (
        set(COMMANDS)
        == {"penstock"} | stream | others | groups | cluster | keys | users | rules | bench | pipeline | idl | schemas
    )


@each_change
@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("penstock bench")])
def test_an_example_fits_a_narrow_terminal_so_that_it_can_be_copied(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split()[1:], "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    told = re.sub(r"\[/?[a-z]+\]", "", COMMANDS[name].epilog.replace("\\[", "[")).split("\n\n")
    lines = [line.strip() for line in shown.splitlines()]
    assert [one for one in told if one not in lines] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_an_example_of_itself(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert f"$ {name}" in command.epilog.replace("\\[", "[")
    for parameter in command.params:
        assert parameter.help, f"{name}: {parameter.name} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_paragraph_of_help_is_as_wide_as_the_terminal(name: str) -> None:
    assert not [one for one in COMMANDS[name].help.split("\n\n") if "\n" in one]


@each_change
@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_switches_without_a_value(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split()[1:], "--help"]).stdout
    assert any("--help " in line for line in shown.splitlines())
    assert "<bool>" not in shown


def test_every_option_in_an_example_exists() -> None:
    flags = {
        name: {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        for name, command in COMMANDS.items()
    }
    for name, command in COMMANDS.items():
        for line in command.epilog.split("\n\n"):
            words = line.replace("[cyan]", "").replace("[/cyan]", "").split()
            if words[:2] != ["$", "penstock"]:
                continue
            used = words[1:]
            if used[1:2] and used[1] in flags["penstock"]:  # with a value, before the command
                del used[1:3]
            called = max((one for one in COMMANDS if used[: len(one.split())] == one.split()), key=len)
            unknown = {word for word in used if word.startswith("--")} - flags[called]
            assert not unknown, f"help of {name}: {called} has no {unknown}"


def test_the_config_in_the_reference_can_be_read(tmp_path: Path) -> None:
    text = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    shown = text.split("```toml\n")[1].split("```")[0].replace('nats_creds = "penstock.creds"\n', "")
    file = tmp_path / "penstock.toml"
    file.write_text(shown)
    assert load(file=file, environment={}).broker_in_flight_bytes == 512 * 2**20
    assert {line.partition(" =")[0] for line in shown.splitlines() if " =" in line} <= set(SETTINGS)


def test_the_config_for_systemd_can_be_read(tmp_path: Path) -> None:
    text = (DOCS / "how-to" / "systemd.md").read_text(encoding="utf-8")
    shown = text.split("```toml\n")[1].split("```")[0]
    file = tmp_path / "penstock.toml"
    file.write_text("\n".join(line.strip() for line in shown.splitlines()))
    (tmp_path / "nats-password").write_text("hunter2\n")
    environment = {"PENSTOCK_NATS_PASSWORD_FILE": str(tmp_path / "nats-password")}
    assert load(file=file, environment=environment).nats_credentials.password == "hunter2"


def test_every_public_name_is_in_the_reference() -> None:
    page = python_reference()
    constants = {"EARLIEST", "LATEST", "aio", "Client", "Consumer", "Producer", "Table", "__version__"}
    for name in set(penstock.__all__) - constants:
        assert f"### {name}\n" in page or f"### penstock.{name}\n" in page or f"| `{name}` |" in page, name
    assert all(f"### penstock.ops.{name}\n" in page or f"| `{name}` |" in page for name in penstock.ops.__all__)
    assert "object at 0x" not in page
    assert "<Place" not in page
