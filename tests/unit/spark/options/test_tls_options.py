"""How Spark's options say that brokers are reached through TLS: in the addresses, which go to every executor."""

from __future__ import annotations

import pickle

import pytest

from penstock.base.errors import ConfigError
from penstock.spark.brokers import Servers
from penstock.spark.options.options import sink_options, source_options

CASES = [
    ({"servers": "a:1,b:2"}, {}, ("a:1", "b:2")),
    ({"servers": "a:1,b:2", "penstock.tls.ca": "/ca"}, {}, ("tls://a:1?ca=/ca", "tls://b:2?ca=/ca")),
    (
        {"servers": "a:1", "penstock.tls.ca": "/ca", "penstock.tls.cert": "/c", "penstock.tls.key": "/k"},
        {},
        ("tls://a:1?ca=/ca&cert=/c&key=/k",),
    ),
    ({"servers": "tls://a:1"}, {}, ("tls://a:1",)),
    ({"servers": "a:1"}, {"PENSTOCK_TLS_CA": "/e"}, ("tls://a:1?ca=/e",)),
    ({}, {"PENSTOCK_SERVER": "tls://a:1?ca=/x"}, ("tls://a:1?ca=/x",)),
]


@pytest.mark.parametrize(("options", "environment", "servers"), CASES)
def test_what_is_said_goes_with_the_addresses(
    options: dict[str, str],
    environment: dict[str, str],
    servers: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = {**options, "stream": "orders"}
    assert source_options(given).servers == sink_options(given).servers == servers
    # What executors are given is read once more, on machines whose environment may say nothing.
    for name in environment:
        monkeypatch.delenv(name)
    assert source_options({"stream": "orders", "servers": ",".join(servers)}).servers == servers


def test_what_does_not_go_together_is_told() -> None:
    with pytest.raises(ConfigError, match=r"servers: some servers have tls://, some not"):
        source_options({"stream": "orders", "servers": "tls://a:1,b:2"})


def test_credentials_go_with_the_addresses_through_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_CREDENTIALS", raising=False)
    options = source_options({"servers": "a:1,b:2", "stream": "orders", "penstock.credentials": "/etc/spark.token"})
    again = pickle.loads(pickle.dumps(options.servers))
    assert again == ("a:1", "b:2")
    assert isinstance(again, Servers)
    assert again.credentials == "/etc/spark.token"
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "/of/the/driver")
    options = source_options({"servers": "a:1", "stream": "orders"})
    assert isinstance(options.servers, Servers)
    assert options.servers.credentials == "/of/the/driver"
