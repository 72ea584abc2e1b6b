"""What a run shows: a line as each thing happens, and a table at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.chaos.checker import CLASSES
from tests.chaos.run import Outcome

_SHOWN_MAX = 5  # of one class


def lines(outcome: Outcome) -> Iterator[str]:
    """The table."""
    options, result = outcome.options, outcome.result
    yield (
        f"seed {options.seed}: {options.brokers} brokers, {options.nats_servers} nats-servers, "
        f"{sum(outcome.struck.values())} faults in {outcome.seconds:.0f} s"
    )
    for name, count in sorted(outcome.struck.items()):
        yield f"  {name:<22} {count:>8}"
    for name, why in sorted(outcome.left_out.items()):
        yield f"  {name:<22} left out: {why}"
    yield f"  {'messages sent':<22} {outcome.heard['sent']:>8}"
    yield f"  {'acked':<22} {result.acked:>8}"
    yield f"  {'stored':<22} {result.stored:>8}"
    yield f"  {'rows polled':<22} {result.polled:>8}"
    yield f"  {'lost as promised':<22} {result.lost_as_promised:>8}"
    yield f"  {'readers sent back':<22} {outcome.readers_sent_back:>8}"
    # Replicas are read once all has come to rest: a run that failed before that knows of none what it holds.
    yield "found:" if result.stored else "found (no replica was read, so what is lost or diverges is not known):"
    for kind in CLASSES:
        mistakes = result.mistakes.get(kind, [])
        yield f"  {kind:<22} {len(mistakes):>8}"
        for text in mistakes[:_SHOWN_MAX]:
            yield f"    {text}"
    for text in outcome.failures:
        yield f"  failed: {text[:2000]}"


def as_json(outcome: Outcome) -> str:
    """The same, for programs."""
    return json.dumps(
        {
            "seed": outcome.options.seed,
            "brokers": outcome.options.brokers,
            "nats_servers": outcome.options.nats_servers,
            "network": outcome.network,
            "seconds": round(outcome.seconds, 1),
            "struck": dict(outcome.struck),
            "left_out": outcome.left_out,
            "heard": dict(outcome.heard),
            "acked": outcome.result.acked,
            "stored": outcome.result.stored,
            "polled": outcome.result.polled,
            "lost_as_promised": outcome.result.lost_as_promised,
            "readers_sent_back": outcome.readers_sent_back,
            "mistakes": outcome.result.mistakes,
            "failures": outcome.failures,
        },
        indent=2,
    )
