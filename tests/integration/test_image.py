"""The image of deploy/docker, built and tried where a container daemon is. Building it fetches what it is built of."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.broker_process import eventually
from tests.extent import needs_time

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 600.0  # to fetch the base image and the packages, and to compile


def docker(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def _has_daemon() -> bool:
    try:
        return subprocess.run(["docker", "version"], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


async def _is_healthy(name: str) -> bool:
    return docker("inspect", "--format", "{{.State.Health.Status}}", name) == "healthy"


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if not _has_daemon():
        pytest.skip("no container daemon answers `docker version`")
    tag = f"penstock:test-{uuid.uuid4().hex[:8]}"
    docker("build", "-f", "deploy/docker/Dockerfile", "-t", tag, ".")
    try:
        yield tag
    finally:
        docker("image", "rm", "--force", tag)


@needs_time
async def test_the_image_runs_a_broker_that_is_healthy_stores_serves_and_stops(image: str) -> None:
    assert docker("run", "--rm", image, "--version").endswith("(hot path: compiled)")
    name = f"penstock-{uuid.uuid4().hex[:8]}"
    hardened = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    docker("run", "--detach", "--name", name, *hardened, image)
    try:
        await eventually(partial(_is_healthy, name), f"the container is healthy: docker logs {name}")
        inside = ("exec", name, "penstock")
        docker(*inside, "stream", "create", "orders", "orders.>")
        docker(*inside, "publish", "orders.eu", "first")
        assert docker(*inside, "read", "orders", "--format", "raw") == "first"
        docker("stop", "--time", "60", name)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name) == "0"
    finally:
        docker("rm", "--force", "--volumes", name)
