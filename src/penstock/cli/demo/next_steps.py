"""Commands to try after the demo, ready to paste into the shell that started it.

| part        | form                                                                                      |
|-------------|-------------------------------------------------------------------------------------------|
| the program | `penstock` if the shell finds this program under that name, else its path                 |
| a path      | relative if the demo runs in the shell's folder and the path lies below it, else absolute |
| addresses   | only if they are not the defaults                                                         |
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.broker.supervision.child import ReadyLine

LATEST = "-latest"
"""Suffix of the lake's folder name: the folder of the table that the commands create."""


def next_steps(
    ready: ReadyLine,
    stream: str,
    *,
    default_client: str,
    lake: Path | None = None,
    python: str = sys.executable,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[str]:
    """Yield lines for a shell, comments among them. `ready` is the broker's ready line, `lake` its archive's folder."""
    folder = _shells_folder(environment)
    program = _program(python, environment, folder)
    moved = ready.client != default_client
    listen = f" --listen {ready.client}" if moved else ""
    server = f" --server {ready.client}" if moved else ""
    data_dir = Path(ready.data_dir)
    yield "# serve the same data again"
    yield f"{program} serve --data-dir {_shown(data_dir, folder)}{listen}"
    yield "# then, in another terminal"
    yield f"{program} read {stream} --from -10 --follow{server}"
    yield f'{program} publish flights.JFK.DL \'{{"dest": "ATL"}}\' --key N12345{server}'
    yield f"{program} status{server}"
    if lake is not None:
        yield from _lake_steps(f"{program} pipeline", stream, _shown(lake.absolute(), folder), server)
    segment = next(iter(sorted((data_dir / "streams").glob(f"*-{stream}/0/*.arrows"))), None)
    if segment is not None:
        yield "# the files are plain Arrow"
        yield f"{program} dump {_shown(segment, folder)} --limit 5"
        code = f"import penstock; print(penstock.open_segment({str(_relative(segment, folder))!r}).read_all())"
        yield f"{_shown(Path(python), folder)} -c {_double_quoted(code)}"


def _lake_steps(program: str, stream: str, lake: str, server: str) -> Iterator[str]:
    yield "# what has come since, into the lake; and is the lake equal to the log?"
    yield f"{program} archive {stream} --to {lake}{server}"
    yield f"{program} audit {stream} --against {lake}{server}"
    yield "# the latest message of each key, here of each aircraft, as a Delta table"
    yield f"{program} table {stream} --to {lake}{LATEST}{server}"
    yield "# from NATS to a lake to SQL, in five minutes: docs/tutorial/spark.md"


def _shells_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the shell's folder if it is also the current one, else None."""
    told = environment.get("PWD", "")
    try:
        return Path(told) if told and os.path.samefile(told, Path.cwd()) else None
    except OSError:
        return None


def _relative(path: Path, folder: Path | None) -> Path:
    for base in () if folder is None else (folder, folder.resolve()):
        if path.is_relative_to(base):
            return path.relative_to(base)
    return path


def _shown(path: Path, folder: Path | None) -> str:
    return shlex.quote(str(_relative(path, folder)))


def _program(python: str, environment: Mapping[str, str], folder: Path | None) -> str:
    ours = Path(python).with_name("penstock")
    found = shutil.which("penstock", path=environment.get("PATH"))
    if found is not None and ours.exists() and os.path.samefile(found, ours):
        return "penstock"
    return _shown(ours, folder) if ours.exists() else f"{_shown(Path(python), folder)} -m penstock"


def _double_quoted(code: str) -> str:
    # Double quotes are more readable where possible, because the code contains single quotes.
    return f'"{code}"' if not set(code) & set('"$`\\!') else shlex.quote(code)
