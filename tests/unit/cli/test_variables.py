"""Which broker a command asks is said in one way: by an option, else by a variable that its help names."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli_app import app
from tests.docs.reference.cli_reference import commands
from tests.extent import each_change

LEAVES = {" ".join(path): command for path, command in commands() if not hasattr(command, "commands")}
CONNECTION = {
    *("PENSTOCK_SERVER", "PENSTOCK_CREDENTIALS", "PENSTOCK_TOKEN", "PENSTOCK_USER", "PENSTOCK_PASSWORD"),
    *("PENSTOCK_TLS_CA", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_KEY"),
}
KEYS = {"PENSTOCK_ENCRYPTION_KEYS", "PENSTOCK_ENCRYPTION_KEYS_FILE"}
OTHERS = {
    "penstock serve": {
        *("PENSTOCK_CONFIG", "PENSTOCK_NATS_PORT"),  # the latter as an example of all settings
        # What an argument should not say:
        *("PENSTOCK_ADMIN_PASSWORD", "PENSTOCK_CLUSTER_SECRET", "PENSTOCK_ENCRYPTION_KEYS", "PENSTOCK_HTTP_TOKEN"),
        *("PENSTOCK_NATS_PASSWORD", "PENSTOCK_NATS_TOKEN"),
    },
    "penstock health": {"PENSTOCK_CONFIG", "PENSTOCK_HTTP", "PENSTOCK_HTTP_TLS", "PENSTOCK_SERVER"},
    "penstock dump": KEYS,
    "penstock keys rewrap": KEYS,
    "penstock verify": CONNECTION | KEYS,
}


def asks(command: Any) -> bool:
    return any(parameter.name == "server" for parameter in command.params)


def invoked(*words: str, **environment: str | None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), env=dict.fromkeys(CONNECTION) | environment)
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("name", LEAVES)
def test_help_names_the_variables_that_a_command_takes(name: str) -> None:
    command = LEAVES[name]
    texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
    named = set(re.findall(r"PENSTOCK_[A-Z_]+", " ".join(texts)))
    assert named == OTHERS.get(name, CONNECTION if asks(command) else set())


@each_change
@pytest.mark.parametrize("name", [name for name, command in LEAVES.items() if not asks(command)])
def test_a_command_that_asks_no_broker_refuses_to_be_told_one(name: str) -> None:
    code, said = invoked("--server", "192.0.2.1:7422", *name.split()[1:])
    assert (code, "takes neither" in said) == (2, True), said


@pytest.mark.parametrize("server", ["192.0.2.1:7422", "127.0.0.1:17422", "tls://broker.example:7422?ca=/ca.pem"])
def test_health_asks_no_broker_where_only_a_client_variable_names_one(server: str) -> None:
    code, said = invoked("health", PENSTOCK_SERVER=server)
    assert code == 2
    assert "PENSTOCK_SERVER names" in said
    assert "give --http HOST:PORT" in said


@each_change
@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("--http", "127.0.0.1:1"), {"PENSTOCK_SERVER": "192.0.2.1:7422", "PENSTOCK_HTTP": "127.0.0.1:2"}),
        ((), {"PENSTOCK_SERVER": "192.0.2.1:7422", "PENSTOCK_HTTP": "127.0.0.1:1"}),
        ((), {"PENSTOCK_SERVER": "localhost,192.0.2.1", "PENSTOCK_HTTP": "127.0.0.1:1"}),
    ],
)
def test_health_asks_where_it_was_told_and_says_where(words: tuple[str, ...], environment: dict[str, str]) -> None:
    code, said = invoked("health", *words, **environment)  # nothing listens on that port
    assert code == 1
    assert "no broker answers over HTTP at 127.0.0.1:1:" in said
