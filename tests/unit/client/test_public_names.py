"""What `import penstock` offers, and how little it does until it is used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import penstock
import penstock.client.blocking.client

SOURCE = Path(penstock.__file__).parents[1]


def test_every_public_name_can_be_imported() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert dir(penstock) == sorted(penstock.__all__)
    assert set(penstock._MODULE_OF) | {"__version__"} == set(penstock.__all__)
    assert penstock.connect is penstock.client.blocking.client.connect
    assert penstock.aio.connect is not penstock.connect
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        penstock.nothing_of_that_name  # noqa: B018


def test_the_version_stands_in_one_place_that_the_builds_read() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}
    assert "version" not in project["project"]
    if "dev" not in penstock.__version__:
        assert f"## [{penstock.__version__}] - " in (SOURCE.parent / "CHANGELOG.md").read_text()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import penstock; loaded = set(sys.modules) - before;"
        "heavy = [name for name in ('pyarrow', 'nats', 'msgspec', 'asyncio', 'numpy') if name in sys.modules];"
        "assert not heavy, heavy; assert [name for name in loaded if name.startswith('penstock')] == ['penstock'];"
        "penstock.connect; penstock.aio; assert 'pyarrow' not in sys.modules and 'nats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SOURCE)}, timeout=30)


def test_people_can_catch_errors_by_what_they_are() -> None:
    assert issubclass(penstock.TimedOut, TimeoutError)
    assert issubclass(penstock.Unavailable, ConnectionError)
    assert issubclass(penstock.StreamNotFound, penstock.RemoteError)
    late = penstock.TimedOut("too late", seconds=3)
    assert (str(late), late.code, late.details) == ("too late [timed_out]", "timed_out", {"seconds": 3})
    assert str(penstock.Unavailable("gone")) == "gone"
