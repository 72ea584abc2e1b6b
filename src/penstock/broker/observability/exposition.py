"""Prometheus's text exposition format, version 0.0.4.

# HELP penstock_ack_seconds From the arrival of a message …
# TYPE penstock_ack_seconds histogram
penstock_ack_seconds_bucket{le="0.001"} 12
penstock_ack_seconds_sum 0.0042
penstock_ack_seconds_count 12
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.base.meters import Family, Histogram, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(family: Family) -> str:
    """Return all lines of one metric."""
    metric = family.metric
    lines = [f"# HELP {metric.name} {_help(metric.meaning)}", f"# TYPE {metric.name} {metric.kind.value}"]
    for sample in family.samples:
        lines += _lines(metric, sample)
    return "\n".join(lines) + "\n"


def _lines(metric: Metric, sample: Sample) -> Iterator[str]:
    labels = [f'{name}="{_value(text)}"' for name, text in zip(metric.labels, sample.labels, strict=True)]
    if not isinstance(sample.value, Histogram):
        yield f"{metric.name}{_braced(labels)} {_number(sample.value * metric.scale)}"
        return
    histogram, total = sample.value, sample.value.count
    bounds = [(_number(bound * metric.scale), count) for bound, count in histogram.cumulative()]
    for bound, count in (*bounds, ("+Inf", total)):
        label = f'le="{bound}"'
        yield f"{metric.name}_bucket{_braced([*labels, label])} {count}"
    yield f"{metric.name}_sum{_braced(labels)} {_number(histogram.sum * metric.scale)}"
    yield f"{metric.name}_count{_braced(labels)} {total}"


def _braced(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _number(value: float) -> str:
    # 15 digits are exact for every offset, and round away the error of scaling; larger integers keep all digits.
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _value(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
