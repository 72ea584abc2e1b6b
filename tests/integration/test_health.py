"""`penstock health`, as a container's health check runs it, beside a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import warm
from tests.broker_process import broker_environment, running_broker, running_nats
from tests.certificates import Authority
from tests.deployments import compose, dockerfile
from tests.extent import needs_time
from tests.ports import ports_in_a_row


def probed(command: list[str], **environment: str) -> tuple[int, str]:
    """The exit code of the command, and what it says."""
    assert command[0] == "penstock"
    done = warm.run(command[1:], broker_environment(environment))
    return done.returncode, (done.stdout + done.stderr).strip()


IMAGE = next(rest for name, rest in dockerfile()[-1] if name == "HEALTHCHECK").partition(" CMD ")[2]
ALIVE = [part.strip(' "') for part in IMAGE.strip("[]").split(",")]
READY = compose()["services"]["penstock-1"]["healthcheck"]["test"][1:]


@needs_time
@pytest.mark.parametrize("tls", [False, True])
def test_the_checks_of_the_deployments_find_out_how_a_broker_fares(tmp_path: Path, tls: bool) -> None:
    port = ports_in_a_row(1)
    http = f"127.0.0.1:{port}"
    environment = {"PENSTOCK_HTTP": http}
    if tls:
        pair = Authority(tmp_path / "certs").issue("broker", ("penstock-1",))  # not for the address that is asked
        environment |= {
            "PENSTOCK_TLS_CERT": str(pair.cert),
            "PENSTOCK_TLS_KEY": str(pair.key),
            "PENSTOCK_HTTP_TLS": "true",
        }
    with running_nats(tmp_path / "nats") as server:
        with running_broker(tmp_path / "data", nats=server.url, environment=environment) as broker:
            assert probed(ALIVE, **environment) == (0, f"{http}: ok")
            assert probed(READY, **environment) == (0, f"{http}: ready")
            # The broker may have it from a flag, of which a health check does not know.
            assert probed(ALIVE, PENSTOCK_HTTP=environment["PENSTOCK_HTTP"]) == (0, f"{http}: ok")
            server.kill()
            broker.logged("no connection to nats")
            code, said = probed(READY, **environment)
            assert (code, "not connected to NATS" in said) == (1, True), said
            assert probed(ALIVE, **environment) == (0, f"{http}: ok")
        code, said = probed(ALIVE, **environment)
        assert (code, "no broker answers over HTTP" in said) == (1, True), said
