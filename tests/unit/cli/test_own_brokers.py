"""Which variables the commands forget that are clients of brokers of their own."""

from __future__ import annotations

import os

import pytest

from penstock.cli.terminal.connection_options import among_brokers_of_its_own
from penstock.client.link import credentials, tls
from tests.broker_process import OF_OTHERS


def test_all_that_a_client_takes_from_the_environment_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    of_clients = {*credentials.VARIABLES, tls.CA_VARIABLE, tls.CERT_VARIABLE, tls.KEY_VARIABLE}
    for name in (*of_clients, "PENSTOCK_PLAIN"):
        monkeypatch.setenv(name, "x")
    among_brokers_of_its_own()
    assert not of_clients & set(os.environ)
    assert os.environ["PENSTOCK_PLAIN"] == "x"
    assert {*OF_OTHERS} - of_clients == {"PENSTOCK_NATS"}  # which is that of brokers: they get none of it
