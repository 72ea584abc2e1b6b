"""Reads the files in deploy/ as Docker, Compose, kustomize and Kubernetes do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.broker.config.settings import ENVIRONMENT_PREFIX, SETTINGS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
VARIABLES = {setting.variable for setting in SETTINGS.values()}

Instruction = tuple[str, str]


def dockerfile() -> list[list[Instruction]]:
    """Return the instructions of each stage of the Dockerfile, in order."""
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
    """Return the variables that the image sets."""
    found: dict[str, str] = {}
    for name, rest in dockerfile()[-1]:
        if name == "ENV":
            found |= dict(part.split("=", 1) for part in shlex.split(rest))
    return found


def _read(file: Path) -> Any:
    return next(_objects(file))


def compose(*over: str) -> dict[str, Any]:
    """Return the compose file merged with the override files `over`."""
    read: dict[str, Any] = {}
    for name in ("compose.yaml", *over):
        read = merged(read, _read(DEPLOY / "compose" / name))
    return read


def merged(one: Any, over: Any, *keys: str) -> Any:
    """Merge two objects as Compose does, or as kustomize, which matches list items by one of `keys`; `over` wins."""
    if isinstance(one, dict) and isinstance(over, dict):
        return {**one, **{name: merged(one.get(name), value, *keys) for name, value in over.items()}}
    if isinstance(one, list) and isinstance(over, list):
        key = next((name for name in keys if over and isinstance(over[0], dict) and name in over[0]), None)
        if key is None:
            return [*one, *(item for item in over if item not in one)]
        known = {item[key]: item for item in one}
        return list({**known, **{item[key]: merged(known.get(item[key]), item, *keys) for item in over}}.values())
    return over


def manifests(folder: str = "kubernetes") -> Iterator[dict[str, Any]]:
    """Yield the objects of a kustomization, with its patches applied."""
    place = DEPLOY / folder
    read = _read(place / "kustomization.yaml")
    patches = [_read(place / one["path"]) for one in read.get("patches", ())]
    for name in read["resources"]:
        of_file = manifests(name.removeprefix("../")) if (place / name).is_dir() else _objects(place / name)
        for one in of_file:
            fits = (over for over in patches if all(over[field] == one[field] for field in ("apiVersion", "kind")))
            over: dict[str, Any] = next(
                (over for over in fits if over["metadata"]["name"] == one["metadata"]["name"]), {}
            )
            yield merged(one, over, "mountPath", "name")


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    yield from yaml.load_all(file.read_text(), yaml.CSafeLoader)  # libyaml's is ten times as fast


def manifest(kind: str, folder: str = "kubernetes") -> dict[str, Any]:
    """Return the first object of that kind."""
    return next(one for one in manifests(folder) if one["kind"] == kind)


def pod_environment(ordinal: int, node: str, namespace: str = "prod", folder: str = "kubernetes") -> dict[str, str]:
    """Return the environment that Kubernetes sets for the broker in one pod."""
    stateful = manifest("StatefulSet", folder)
    fields = {
        "metadata.name": f"{stateful['metadata']['name']}-{ordinal}",
        "metadata.namespace": namespace,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
        "spec.nodeName": node,
    }
    found: dict[str, str] = {}
    for one in stateful["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in one:
            # A reference sees only variables that were set before.
            value = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), one["value"])
        else:
            value = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        found[one["name"]] = value
    return found


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are settings of Penstock."""
    return {name: value for name, value in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
