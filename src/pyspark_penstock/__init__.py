"""Where Spark finds `format("penstock")`: it looks into each package whose name begins with `pyspark_`."""

from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]
