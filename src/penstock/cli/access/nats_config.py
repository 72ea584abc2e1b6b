"""`penstock nats-config`: prints a subject mapping that lets nats-server choose each message's partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import is_wildcard
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.names import each_stream_name
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Server, Timeout, connected, examples
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.base.config import StreamConfig

EXAMPLES = examples(
    "penstock stream create orders 'orders.*' --partitions 4 --partition-by mapped",
    "penstock nats-config orders > mappings.conf",
    "# nats-server uses only one such block: name all streams at once",
    "penstock nats-config orders payments > mappings.conf",
)
_WEIGHTS_MAX = 100  # nats-server's weights are whole percents


@clearly
def nats_config(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="STREAM…",
            help="Streams whose partition nats-server is to choose.",
            callback=each_stream_name,
        ),
    ],
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Print a subject mapping for nats-server.conf that has nats-server choose the partition of each message.

    Each message then goes only to the leader of its partition. On a subject with wildcards nats-server hashes the
    tokens at the wildcards: messages with the same tokens are in the same partition, in order. On a subject without
    wildcards it chooses at random, and the messages of a key are not ordered.

    The streams must be made with --partition-by mapped; or with publisher, on a subject without wildcards.

    Put the mapping at the top of nats-server.conf, or into an account, and reload nats-server. It uses only the last
    block of mappings: name all streams in one command. Other subscribers see the mapped subject.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        infos = [client.stream(name, timeout=seconds) for name in names]
    say(mapping(*(info.config for info in infos)))


def mapping(*configs: StreamConfig) -> str:
    """Return the text for nats-server.conf. Raise ValueError if nats-server cannot choose a stream's partitions."""
    lines = [line for config in configs for line in _lines(config)]
    return "\n".join(["mappings: {", *lines, "}"])


def _lines(config: StreamConfig) -> list[str]:
    split = config.split
    if config.partitions == 1:
        raise ValueError(f"stream {config.name} has one partition: there is nothing to map")
    if not split.has_subjects:
        text = f"stream {config.name} has --partition-by {config.partition_by}: its leaders choose the partition"
        how = "nats-server does not know keys and ranges" if split.how in _UNKNOWN else _twin(config)
        raise ValueError(f"{text}; {how}")
    targets = [config.subject_of(number) for number in range(config.partitions)]
    if is_wildcard(config.subject):
        return [f'  "{config.subject}": "{_by_tokens(config)}"']
    if len(targets) > _WEIGHTS_MAX:
        raise ValueError(f"nats-server's weights are whole percents: {len(targets)} partitions are more than 100")
    lines = [f"  # {config.name}: at random, so the messages of a key are not ordered", f'  "{config.subject}": [']
    base, more = divmod(100, len(targets))
    for number, target in enumerate(targets):
        lines.append(f"    {{ destination: {target}, weight: {base + (number < more)}% }}")
    return [*lines, "  ]"]


_UNKNOWN = (PartitionBy.KEY, PartitionBy.RANGE)


def _twin(config: StreamConfig) -> str:
    asked = f"penstock stream create NAME '{config.subject}' --partitions {config.partitions} --partition-by mapped"
    return f"a mapping by nats-server needs a new stream: {asked}"


def _by_tokens(config: StreamConfig) -> str:
    tokens, count = [], 0
    for token in config.subject.split("."):
        count += token == "*"
        tokens.append(f"{{{{wildcard({count})}}}}" if token == "*" else token)
    numbers = ",".join(str(number) for number in range(1, count + 1))
    return ".".join([*tokens, f"{{{{partition({config.partitions},{numbers})}}}}"])
