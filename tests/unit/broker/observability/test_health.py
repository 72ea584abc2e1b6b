"""Where a probe finds the HTTP port, and what it makes of what it hears, or does not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.config.config import HttpPorts, knows_broker, load_http
from penstock.broker.observability.health import HEALTHY, ask


@pytest.mark.parametrize(
    ("environment", "ports"),
    [
        ({}, HttpPorts((Address("127.0.0.1", 8422),), speaks_tls=False)),
        ({"PENSTOCK_HTTP": "0.0.0.0:9"}, HttpPorts((Address("0.0.0.0", 9),), speaks_tls=False)),
        ({"PENSTOCK_HTTP": "off"}, HttpPorts((), speaks_tls=False)),
        # What else is set, and what else is wrong, is the broker's to say.
        ({"PENSTOCK_HTTP_TLS": "true", "PENSTOCK_ID": "x"}, HttpPorts((Address("127.0.0.1", 8422),), speaks_tls=True)),
        (
            {"PENSTOCK_BROKERS": "2", "PENSTOCK_HTTP": "127.0.0.1:9"},
            HttpPorts((Address("127.0.0.1", 9), Address("127.0.0.1", 10)), speaks_tls=False),
        ),
    ],
)
def test_where_the_port_is_the_settings_of_the_broker_say(environment: dict[str, str], ports: HttpPorts) -> None:
    assert load_http(environment=environment) == ports


def test_a_flag_goes_before_the_environment_and_that_before_a_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('http = "127.0.0.1:1"\nhttp_tls = true\n')
    assert load_http(file=file, environment={}) == HttpPorts((Address("127.0.0.1", 1),), speaks_tls=True)
    given = {"PENSTOCK_CONFIG": str(file), "PENSTOCK_HTTP": "127.0.0.1:2"}
    assert load_http(environment=given).addresses == (Address("127.0.0.1", 2),)
    assert load_http(environment=given, flags={"http": "127.0.0.1:3"}).addresses == (Address("127.0.0.1", 3),)


def test_a_file_that_cannot_be_read_is_a_mistake_only_where_nothing_else_says_the_address() -> None:
    nowhere = Path("/nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_http(file=nowhere, environment={})
    ports = HttpPorts((Address("127.0.0.1", 3),), speaks_tls=False)
    assert load_http(file=nowhere, environment={}, flags={"http": "127.0.0.1:3"}) == ports
    assert load_http(environment={"PENSTOCK_CONFIG": str(nowhere), "PENSTOCK_HTTP": "127.0.0.1:3"}) == ports
    with pytest.raises(ConfigError, match="cannot be read"):
        load_http(file=nowhere, environment={"PENSTOCK_BROKERS": "many"}, flags={"http": "127.0.0.1:3"})


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_HTTP"):
        load_http(environment={"PENSTOCK_HTTP": "nowhere"})


@pytest.mark.parametrize("text", [None, "[broken"])
def test_a_file_of_settings_that_cannot_be_read_says_no_address(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "penstock.toml"
    if text is not None:
        file.write_text(text)
    for given in ({"file": file, "environment": {}}, {"environment": {"PENSTOCK_CONFIG": str(file)}}):
        with pytest.raises(ConfigError, match=f"{file}: (cannot be read: No such file|is not valid TOML)"):
            load_http(**given)


def test_who_does_not_answer_is_not_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(OperationalError, match=r"no broker answers over HTTP at 127\.0\.0\.1:\d+: timed out"):
            ask(address, HEALTHY, speaks_tls=False, timeout_s=0.1)
    with pytest.raises(OperationalError, match="refused"):
        ask(address, HEALTHY, speaks_tls=True, timeout_s=1.0)


@pytest.mark.parametrize(
    ("environment", "knows"),
    [
        ({}, False),
        ({"PENSTOCK_SERVER": "a:1", "PENSTOCK_TLS_CA": "/ca.pem", "PENSTOCK_TOKEN": "pst_x"}, False),  # of clients
        ({"PENSTOCK_HTTP": ""}, False),
        ({"PENSTOCK_HTTP": "127.0.0.1:9"}, True),
        ({"PENSTOCK_DATA_DIR": "/data"}, True),
        ({"PENSTOCK_CONFIG": "/etc/penstock.toml"}, True),
    ],
)
def test_what_a_client_is_told_says_nothing_of_a_broker_of_this_machine(
    environment: dict[str, str], knows: bool
) -> None:
    assert knows_broker(environment=environment) is knows
    assert knows_broker(file=Path("penstock.toml"), environment=environment)
