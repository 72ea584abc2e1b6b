"""Entry point of `format("penstock")`: Spark searches each package whose name begins with `pyspark_`."""

from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]
