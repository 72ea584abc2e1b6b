"""Programs in Go and JavaScript that use NATS, and the program `nats`: built once, in `build/conformance`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.conformance.natscli import NatsCli
from tests.conformance.suites import BUILD, carry_out, program

_TIMEOUT_S = 120
_BUILD_S = 300
_NPM = {f"@nats-io/{name}": "3.4.0" for name in ("transport-node", "jetstream", "kv", "obj")}
_GO = "github.com/nats-io/nats.go{}@v1.55.0"


def by_node(text: str, folder: Path, url: str) -> str:
    """Run a program of JavaScript that connects with `connect()`; return what it prints."""
    _need("node")
    modules = BUILD / "programs" / "js"
    modules.mkdir(parents=True, exist_ok=True)
    (modules / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": _NPM}))
    install = [program("npm", "the test"), "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    carry_out(install, "the test", modules)
    (folder / "node_modules").symlink_to(modules / "node_modules")
    (folder / "program.mjs").write_text(text.replace("connect()", f'connect({{ servers: "{url}" }})'))
    return _said(["node", "program.mjs"], folder)


def by_go(text: str, folder: Path, url: str) -> str:
    """Run a program of Go that connects to `nats.DefaultURL`; return what it prints."""
    _need("go")
    modules = BUILD / "programs" / "go"
    built = modules / sha256(text.encode()).hexdigest()[:16]
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        if not (modules / "go.sum").exists():
            (modules / "go.mod").write_text("module program\n\ngo 1.24\n")
            carry_out([program("go", "the test"), "get", _GO.format(""), _GO.format("/jetstream")], "the test", modules)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(modules / name, folder / name)
        # the address is given by a variable, so that a built program runs again
        where = 'func init() { nats_url = os.Getenv("PROGRAM_NATS") }\n'
        (folder / "url.go").write_text(f'package main\n\nimport "os"\n\nvar nats_url string\n\n{where}')
        (folder / "main.go").write_text(text.replace("nats.DefaultURL", "nats_url"))
        carry_out([program("go", "the test"), "build", "-mod=mod", "-o", str(built), "."], "the test", folder)
    return _said([str(built)], folder, PROGRAM_NATS=url)


def built_by_go(sources: Path, target: Path) -> Path:
    """Build the Go program of a folder with its own go.mod; skip the test where Go or the modules cannot be had."""
    _need("go")
    done = subprocess.run(
        ["go", "build", "-o", str(target), "."],
        cwd=sources,
        env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode and re.search("dial tcp|lookup|toolchain not available|requires go >=|403|404", done.stderr):
        pytest.skip(f"the modules of the Go program cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return target


def by_nats(line: str, folder: Path, url: str) -> str:
    """Run a command line of the program `nats`; return what it prints."""
    _need("go")
    suite = NatsCli()
    suite.prepare()
    words = [str(suite.program), "--no-context", "--server", url, *shlex.split(line)[1:]]
    return _said(words, folder, XDG_CONFIG_HOME=str(folder), HOME=str(folder), NO_COLOR="1")


def _need(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"not on this machine: {name}")


def _said(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
