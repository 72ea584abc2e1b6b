"""Files for hosts and editors: the same commands, tools and versions as locally."""

from __future__ import annotations

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOW = GITHUB / "workflows" / "ci.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps() -> list[dict[str, Any]]:
    return [step for job in loaded(WORKFLOW)["jobs"].values() for step in job["steps"]]


def test_it_runs_what_is_run_locally() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = makefile.partition(".PHONY: ")[2].partition("\n")[0].split()
    commands = {step["run"] for step in steps() if "run" in step}
    assert {".ci/run", "make test", "make site"} <= commands
    assert {one.removeprefix("make ") for one in commands - {".ci/run"}} <= set(targets)


def test_every_action_is_pinned_to_a_commit_whose_version_is_named() -> None:
    lines = [line for line in WORKFLOW.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_every_python_that_is_supported_is_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert loaded(WORKFLOW)["jobs"]["quick"]["strategy"]["matrix"]["python"] == named


def test_hooks_are_the_tools_of_the_virtual_environment() -> None:
    config = loaded(ROOT / ".pre-commit-config.yaml")
    assert [one["repo"] for one in config["repos"]] == ["local"]  # nothing is fetched
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    tools = [hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks]
    assert tools == ["ruff", "mypy", "lint-imports"]
    assert [tool for tool in tools if f'["{tool}"' not in (ROOT / "dev.py").read_text(encoding="utf-8")] == []


def test_editors_have_the_line_length_of_ruff() -> None:
    parser = ConfigParser()
    parser.read_string("[first]\n" + (ROOT / ".editorconfig").read_text(encoding="utf-8"))
    assert parser["*.{py,pxd,pyi}"]["max_line_length"] == str(PROJECT["tool"]["ruff"]["line-length"])


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_for_issues_is_whole(name: str) -> None:
    form = loaded(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert {"name", "description", "body"} <= form.keys()
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked)
    assert any(part.get("validations", {}).get("required") for part in asked)
