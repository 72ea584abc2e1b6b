"""What a table of rates says beside its numbers."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from penstock.bench.report import compared
from penstock.bench.rounds import Measurement, Ratio
from penstock.cli.bench_output import ratio_text, show_comparison


def test_what_the_generator_bounds_is_marked_below_its_table() -> None:
    rates = {"a": 90.0, "b": 10.0, "null": 100.0}
    comparison = compared(
        name="x",
        title="x",
        titles={name: name.upper() for name in rates},
        measurements=[Measurement(system=name, round_number=0, value=value) for name, value in rates.items()],
        pairs=[("a", "b")],
        notes={"a / b": "unlike"},
        ceilings={"a": "null", "b": "null"},
    )
    text = StringIO()
    show_comparison(Console(file=text, width=120), comparison)
    assert "A *" in text.getvalue()
    assert "* A: bounded by the generator: more than 70% of null" in text.getvalue()
    assert "B *" not in text.getvalue()
    assert "unlike; a is bounded by the generator" in text.getvalue()


def test_a_ratio_without_a_spread_shows_none() -> None:
    assert ratio_text(Ratio(1.5, 1.5, 1.5, 1, pooled=True)) == "1.50 (all rounds as one: no spread)"
    assert ratio_text(Ratio(1.5, 1.4, 1.6, 5)) == "1.50 (1.40 to 1.60, 5 rounds)"
