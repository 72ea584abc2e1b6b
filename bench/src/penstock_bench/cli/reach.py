"""`penstock bench reach`: all of Penstock's performance goals, in one run and one report."""

from __future__ import annotations

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import Dir, HtmlFile, JsonFile, Rounds, Short
from penstock_bench.cli.run import BenchPlace, running

EXAMPLES = examples(
    "# about 12 minutes; `make bench` runs this",
    "penstock bench reach --short",
    "# an hour, and 10 GB of disk meanwhile",
    "penstock bench reach --json reach.json --html reach.html",
)


@clearly
def reach(
    short: Short = False,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure Penstock against its performance goals, beside JetStream, and print which are reached.

    Measures throughput, consumers, latency, idle streams and a long stream, with the limits of the machine in the same
    run. A goal is a ratio within that run, so it is valid on a small machine as on a large one.
    """
    from penstock_bench import latency_run, scale, throughput
    from penstock_bench import limits as machine_limits
    from penstock_bench import reach as goals

    plan = goals.planned(short=short, rounds=rounds)
    place = BenchPlace(folder, plan.bytes_needed, "" if short else "measure less with --short")
    with running("reach", place, total=plan.steps, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds)
        comparisons = throughput.run(plan.throughput, run.folder / "throughput", run.said, run.show)
        latencies = latency_run.run(plan.latency, run.folder / "latency", run.said, run.show_latency)
        run.found["limits"] = machine_limits.measured(run.folder, rounds=plan.limit_rounds, said=run.step)
        run.found["figures"] = scale.run(plan.scale, run.folder / "scale", run.step)
        run.found["reach"] = goals.reached(comparisons) + latency_run.reached(latencies)
