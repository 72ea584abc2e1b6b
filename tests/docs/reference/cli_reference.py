"""Generates docs/reference: cli.md from the commands' help, config.md and metrics.md from their tables, errors.md
from the table of error codes, contract-changes.md from that of rules, python.md, spark.md, and in
jetstream-compatibility.md the part on the tests of others.

    python -m tests.docs.reference docs/reference

A test compares the files with this module's output, so that they cannot become outdated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.broker.config.settings import SETTINGS, Setting
from tests.cli_app import root_command
from tests.conformance.page import with_results
from tests.docs.reference.contract_changes import contract_changes
from tests.docs.reference.errors_reference import errors_reference
from tests.docs.reference.jetstream_api_reference import jetstream_api
from tests.docs.reference.metrics_reference import metrics_reference
from tests.docs.reference.python_reference import python_reference
from tests.docs.reference.spark_reference import spark_reference

_MARKUP = re.compile(r"(?<!\\)\[/?[a-z ]+\]")
_MADE = "<!-- Made by `python -m tests.docs.reference docs/reference`; change the code, not this file. -->\n"

_CLI_HEAD = """# Command line (CLI): commands, options, exit codes

All commands of `penstock`, their options and examples; `penstock COMMAND --help` prints the same, with \
the connection options in one line.

| exit code | meaning |
|---|---|
| 0 | Success; also if the reader of the output closed the pipe early (`penstock read orders \\| head`). |
| 1 | The broker, NATS, the disk or the network refused or failed: one clear line on stderr says what, and what to do. \
Also if `stream find`, `subjects` or `last` finds nothing, with `--json` too; a count of 0 is a result. |
| 2 | Usage error: options, values, an invalid config. |
| 3 | `penstock status`: the cluster is degraded; 0: it is healthy, 1: it is down, or no broker answers. |
| 130 | Ended by Ctrl-C. |
| 143, 129 | `penstock bench` and `penstock demo`: ended by SIGTERM, or because the terminal was closed. |

Sizes are written `512`, `64KiB`, `10GiB` (powers of 1024) or `10GB` (of 1000).
Durations are written `500ms`, `30s`, `15m`, `12h`, `7d` or `1h30m`.
Times that are shown are in UTC; a time without a zone is taken as UTC.
Clients find the broker by `--server HOST:PORT`, else by the variable `PENSTOCK_SERVER`, else at 127.0.0.1:7422.
One broker is enough to find the others of its cluster; with several (`HOST:PORT,HOST:PORT`) some may be down.
`PENSTOCK_DEBUG=1` is the same as `--debug`.

| variable | commands that take it |
|---|---|
| `PENSTOCK_SERVER`, `PENSTOCK_CREDENTIALS`, `PENSTOCK_TOKEN`, `PENSTOCK_USER`, `PENSTOCK_PASSWORD`, \
`PENSTOCK_TLS_CA`, `PENSTOCK_TLS_CERT`, `PENSTOCK_TLS_KEY` | every command with `--server`; an option overrides them |
| `PENSTOCK_CONFIG`, and one for each [setting](config.md) | `penstock serve`; a flag overrides them |
| `PENSTOCK_HTTP`, `PENSTOCK_HTTP_TLS`, `PENSTOCK_BROKERS`, `PENSTOCK_CONFIG` | `penstock health`; `--http` overrides |
| `PENSTOCK_SERVER` | `penstock health` checks no broker if only this variable names one |
| `PENSTOCK_ENCRYPTION_KEYS_FILE`, `PENSTOCK_ENCRYPTION_KEYS` | `penstock dump`, `penstock keys rewrap`, and \
`penstock verify` of files |
| none of these | `penstock certs`, `penstock demo`, `penstock bench`, `penstock keys new`, `penstock keys list`: \
these start the brokers that they need |

`--server` before a command that contacts no broker is an error.

Names that other programs use work too: `ls`, `info`, `describe`, `rm`, `add`, `edit`, `pub` and `sub` for `list`, \
`show`, `delete`, `create`, `alter`, `publish` and `read`; `penstock ls` lists streams.
"""

_CONFIG_HEAD = """# Broker configuration: config file, environment variables, flags

All settings of `penstock serve`.
Each setting has one name in three places:

| place | example | overrides |
|---|---|---|
| a flag of `penstock serve` | `--nats-port 4222` | environment, file and default |
| an environment variable | `PENSTOCK_NATS_PORT=4222` | file and default |
| a key of a TOML file, at the top level | `nats_port = 4222` | the default |

`--config FILE` or `PENSTOCK_CONFIG` names the file:

```toml
# penstock.toml
data_dir = "/var/lib/penstock"
listen = "127.0.0.1:7422"
nats = ["tls://nats-1.example:4222", "tls://nats-2.example:4222"]
nats_creds = "penstock.creds"
log_format = "json"
broker_in_flight_bytes = "512MiB"
```

```sh
# the settings in effect and the source of each value, without secrets
penstock serve --config penstock.toml --print-config
```

## Settings

| setting | environment | flag | default | meaning |
|---|---|---|---|---|
"""

_CONFIG_TAIL = """
## Rules for values

| what | rule |
|---|---|
| errors | All mistakes are reported together, each with its source; an unknown name is a mistake. |
| environment variables | An empty one counts as not set; a line end after its value is removed, as in files of \
secrets. |
| variables that Kubernetes sets for services | Ignored: `PENSTOCK_NATS_PORT=tcp://10.0.0.1:4222`, and for a service \
named `penstock` `PENSTOCK_SERVICE_HOST` and `PENSTOCK_PORT_…`. |
| passwords in a URL of `nats` | Percent-encoded where needed, a comma always (`%2C`). |
| config file | May begin with a byte order mark; lines may end as on Windows; has no tables. |
| relative paths | In a config file they start at its own directory, elsewhere at the working directory. |
| secrets | Keep them in files (`nats_password_file`, `nats_token_file`, `nats_creds`, `nats_nkey_seed`): other users \
of the machine can see a flag in the process list. |
| login to NATS | At most one kind can be set, and none for the embedded nats-server, which accepts connections from \
this machine only. |
"""


def cli_reference() -> str:
    """Return the text of docs/reference/cli.md."""
    root = root_command()
    parts = [_CLI_HEAD, _MADE, _list_of_commands()]
    for path, command in commands():
        context = _context(command, path, root)
        parts.append(f"## {' '.join(path)}\n\n```\n{' '.join(command.get_usage(context).split())}\n```\n")
        parts.append(_paragraphs(command.help or "") + "\n")
        parts += [_parameters(command)] if command.params else []
        if command.epilog:
            parts.append("```sh\n" + "\n".join(_example_lines(command.epilog)) + "\n```\n")
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _list_of_commands() -> str:
    rows = []
    for path, command in commands():
        name, first = " ".join(path), _paragraphs(command.help or "").split("\n", 1)[0]
        rows.append(f"| [`{name}`](#{'-'.join(path)}) | {_cell(first)} |")
    return "## Commands\n\n| command | does |\n|---|---|\n" + "\n".join(rows) + "\n"


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (path, command) of every visible command, the program itself first."""

    def below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                yield from below((*path, name), child)

    yield from below(("penstock",), root_command())


def _context(command: Any, path: tuple[str, ...], root: Any) -> Any:
    context = root.make_context("penstock", [], resilient_parsing=True) if len(path) == 1 else None
    return context or command.make_context(" ".join(path), [], resilient_parsing=True)


def _plain(text: str) -> str:
    return _MARKUP.sub("", text).replace("\\[", "[")


def _paragraphs(text: str) -> str:
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    # House style: one sentence per line.
    return "\n\n".join(re.sub(r"(?<=[a-z)\]:])\. (?=[A-Z])", ".\n", _plain(part)) for part in paragraphs)


def _example_lines(epilog: str) -> list[str]:
    lines = [_plain(part.strip()) for part in epilog.split("\n\n")]
    return [line.removeprefix("$ ") for line in lines if line != "Examples"]


def _parameters(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            name = f"`{parameter.metavar or parameter.name}`" + ("" if parameter.required else " (optional)")
        else:
            flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
            value = "" if getattr(parameter, "is_flag", False) else f" `{parameter.metavar}`"
            name = f"{flags}{value}"
        default = parameter.default
        shown = f" Default: {default}." if default not in (None, False, "", [], ()) and not callable(default) else ""
        rows.append(f"| {_cell(name)} | {_cell(_plain(' '.join((parameter.help or '').split())) + shown)} |")
    return "| option or argument | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def config_reference() -> str:
    """Return the text of docs/reference/config.md."""
    rows = "".join(_setting_row(setting) for setting in SETTINGS.values())
    return _CONFIG_HEAD + rows + _CONFIG_TAIL + "\n" + _MADE


def _setting_row(setting: Setting) -> str:
    flag = f"`{setting.flag} {setting.metavar}`" if setting.metavar else f"`{setting.flag}`"
    default = f"`{setting.default_text}`" if setting.default_text else ""
    cells = (f"`{setting.name}`", f"`{setting.variable}`", flag, default, setting.meaning)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |\n"


def errors_page() -> str:
    """Return the text of docs/reference/errors.md."""
    return f"{errors_reference()}\n{_MADE}"


def jetstream_api_page() -> str:
    """Return the text of docs/reference/jetstream-api.md."""
    return f"{jetstream_api()}\n{_MADE}"


def contract_changes_page() -> str:
    """Return the text of docs/reference/contract-changes.md."""
    return f"{contract_changes()}\n{_MADE}"


def main(folder: Path) -> None:
    """Write the files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cli.md").write_text(cli_reference(), encoding="utf-8")
    (folder / "config.md").write_text(config_reference(), encoding="utf-8")
    (folder / "contract-changes.md").write_text(contract_changes_page(), encoding="utf-8")
    (folder / "errors.md").write_text(errors_page(), encoding="utf-8")
    (folder / "jetstream-api.md").write_text(jetstream_api_page(), encoding="utf-8")
    compatibility = folder / "jetstream-compatibility.md"
    compatibility.write_text(with_results(compatibility.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "metrics.md").write_text(metrics_reference(), encoding="utf-8")
    (folder / "python.md").write_text(python_reference(), encoding="utf-8")
    (folder / "spark.md").write_text(spark_reference(), encoding="utf-8")
