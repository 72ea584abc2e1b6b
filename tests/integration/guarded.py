"""Brokers with required logins, for tests of permissions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from penstock import Credentials, aio
from penstock.access import Operation, Rule
from tests.broker_process import BrokerProcess, running_broker

ADMIN = Rule(Operation.ADMIN)
SECRET = "a secret of the cluster that is long enough"
PASSWORD = "a password"


@contextmanager
def guarded_broker(data_dir: Path) -> Iterator[BrokerProcess]:
    """Run a broker with `--auth`; its clients log in as the administrator of its first start."""
    with running_broker(data_dir, "--auth") as broker:
        broker.credentials = Credentials.parsed((data_dir / "admin.credentials").read_text())
        yield broker


@asynccontextmanager
async def logged_in(broker: BrokerProcess, credentials: object) -> AsyncIterator[aio.Client]:
    async with aio.connect(broker.client_address, credentials=credentials) as client:  # type: ignore[arg-type]
        yield client


def in_cluster(tmp_path: Path) -> tuple[str, ...]:
    """Return the arguments for logins and for broker proofs with the cluster secret."""
    secret, password = tmp_path / "secret", tmp_path / "password"
    secret.write_text(SECRET + "\n")
    password.write_text(PASSWORD + "\n")
    return ("--cluster-secret-file", str(secret), "--auth", "--admin-password-file", str(password))
