"""`penstock serve`: runs a broker until SIGTERM or Ctrl-C."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.errors import ConfigError, PenstockError
from penstock.base.importing import undisturbed
from penstock.base.shortages import shortage
from penstock.broker.config.settings import SETTINGS, Setting
from penstock.cli.terminal.failure import FAILED, USED_WRONGLY, clearly, say
from penstock.cli.terminal.options import Debug, examples, switch, text_option, with_options
from penstock.cli.terminal.standard_streams import forget_stdout
from penstock.hot import is_compiled, way

if TYPE_CHECKING:
    from penstock.broker.config.config import Addresses, BrokerConfig

EXAMPLES = examples(
    "penstock serve",
    "penstock serve --data-dir /var/lib/penstock --nats nats://nats.example:4222 --nats-creds penstock.creds",
    "# any free ports; the line `ready` has their numbers",
    "penstock serve --listen 127.0.0.1:0 --nats-port 0",
    "# the second of three brokers, which share a NATS",
    "penstock serve --id 2 --cluster 1@10.0.0.1:7422,2@10.0.0.2:7422,3@10.0.0.3:7422 --nats nats://nats.example:4222 "
    "--insecure",
    "# eight brokers, one for each core of this machine, and a nats-server",
    "penstock serve --brokers 8",
    "# the settings in effect, and their sources",
    "penstock serve --config penstock.toml --print-config",
)
_PANELS = {
    **dict.fromkeys(("id", "cluster", "join", "rack"), "Cluster"),
    **dict.fromkeys(("brokers", "ports", "pin"), "Several brokers"),
    "tls": "TLS",
    "nats": "NATS",
    "log": "Log",
    **dict.fromkeys(("partition", "broker", "disk"), "Limits"),
}


def _parameter(setting: Setting) -> inspect.Parameter:
    panel = _PANELS.get(setting.name.partition("_")[0])
    if not setting.metavar:
        return switch(setting.name, flag=setting.flag, meaning=setting.meaning, panel=panel)
    default = f"  Default: {setting.default_text}." if setting.default_text else ""
    seen = f" It is visible in `ps`: better use {setting.flag}-file, or ${setting.variable}."
    meaning = setting.meaning + (seen if setting.secret else "") + default
    return text_option(setting.name, flag=setting.flag, metavar=setting.metavar, meaning=meaning, panel=panel)


def _serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings in TOML.  Default: $PENSTOCK_CONFIG, else none."),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the settings in effect (without secrets) and stop."),
    ] = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Without options it starts a nats-server of its own and keeps its data in ./penstock-data; both can be reached from
    this machine only.

    Every setting can also be given in a TOML file (--nats-port as nats_port = 4222) or in the environment
    (PENSTOCK_NATS_PORT=4222). Flags override the environment, and the environment overrides the file.

    When the broker is ready it prints one line: [bold]ready client=HOST:PORT nats=URL data=DIR[/bold]. It logs to
    stderr.

    A broker of a cluster prints [bold]cluster id=N voters=ID@HOST:PORT,…[/bold] once it listens. It is ready when the
    metadata leader has registered it; until then it logs what it waits for, and clients can read the messages that it
    has.

    With [bold]--brokers N[/bold] it runs N brokers, each in a process, and restarts those that exit. They are a
    cluster, or part of one, and the line names all of them: client=HOST:PORT,HOST:PORT,…
    """
    with undisturbed():
        from penstock.broker.config.config import load, to_toml

    settings = load(file=config, environment=os.environ, flags=flags)
    if print_config:
        say(to_toml(settings))
        return
    if settings.data_dir.exists() and not settings.data_dir.is_dir():
        raise ValueError(f"the data directory {settings.data_dir} is a file; give a directory, or a name that is free")
    with undisturbed():
        from penstock.broker import logs, serve  # noqa: F401 (takes a while)

    broker = settings.broker_id if settings.brokers is None else None
    logs.configure(level=settings.log_level, log_format=settings.log_format, broker=broker)
    if not is_compiled():
        logging.getLogger("penstock.broker").warning(
            "hot path: %s, several times slower than compiled; docs/how-to/build.md says how to compile it", way()
        )
    try:
        raise typer.Exit(_code(settings))
    except (PenstockError, OSError, ImportError, MemoryError) as error:
        if settings.log_format != "json":
            raise
        for text in error.mistakes if isinstance(error, ConfigError) else [shortage(error) or str(error)]:
            logging.getLogger("penstock.broker").critical("%s", text)
        raise typer.Exit(USED_WRONGLY if isinstance(error, ConfigError) else FAILED) from None


def _code(settings: BrokerConfig) -> int:
    """Run one broker or several until they stop; return the exit code."""
    if settings.brokers is not None:
        from penstock.broker.supervision.supervisor import run_machine

        return run_machine(settings, ready=lambda clients, nats: _announce_all(clients, nats, settings.data_dir))
    from penstock.broker.serve import run

    return run(settings, ready=announce, listening=announce_cluster)


def announce(addresses: Addresses) -> None:
    """Print the line `ready`, which programs that start a broker wait for."""
    _announce_all(str(addresses.client), addresses.nats, addresses.data_dir)


def _announce_all(client: str, nats: str, data_dir: Path) -> None:
    _print(f"ready client={client} nats={nats} data={data_dir}")


def announce_cluster(addresses: Addresses) -> None:
    """Print the line `cluster` with the broker's id and the voters."""
    if addresses.cluster:
        _print(f"cluster {addresses.cluster}")


def _print(line: str) -> None:
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError:  # a broker goes on if the reader of its stdout has exited, or the disk of stdout is full
        forget_stdout()


serve = clearly(with_options(_serve, [_parameter(setting) for setting in SETTINGS.values()]))
