"""What is in deploy/, read as the programs read it that it is for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.broker.settings import ENVIRONMENT_PREFIX, SETTINGS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
VARIABLES = {setting.variable for setting in SETTINGS.values()}

Instruction = tuple[str, str]


def dockerfile() -> list[list[Instruction]]:
    """The instructions of each stage of the Dockerfile, in order."""
    text = (DEPLOY / "docker/Dockerfile").read_text().replace("\\\n", " ")
    stages: list[list[Instruction]] = [[]]
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, re.sub(r"\s+", " ", rest.strip())))
    return stages[1:]


def image_environment() -> dict[str, str]:
    """What the image sets."""
    found: dict[str, str] = {}
    for name, rest in dockerfile()[-1]:
        if name == "ENV":
            found |= dict(part.split("=", 1) for part in shlex.split(rest))
    return found


def compose() -> dict[str, Any]:
    """The compose file; what is merged in it is merged."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    return read


def manifests() -> Iterator[dict[str, Any]]:
    """The objects that the kustomization names."""
    folder = DEPLOY / "kubernetes"
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())


def manifest(kind: str) -> dict[str, Any]:
    """The first of that kind."""
    return next(one for one in manifests() if one["kind"] == kind)


def pod_environment(ordinal: int, node: str, namespace: str = "prod") -> dict[str, str]:
    """What Kubernetes sets for the broker in one pod."""
    stateful = manifest("StatefulSet")
    fields = {
        "metadata.name": f"{stateful['metadata']['name']}-{ordinal}",
        "metadata.namespace": namespace,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
        "spec.nodeName": node,
    }
    found: dict[str, str] = {}
    for one in stateful["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in one:
            # Only what is set before can be referred to.
            value = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), one["value"])
        else:
            value = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        found[one["name"]] = value
    return found


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of Penstock in it."""
    return {name: value for name, value in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
