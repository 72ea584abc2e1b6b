"""Query a stream with pandas, Polars and DuckDB: they compute on the Arrow table that the client reads.

Needs the extras: `pip install '.[pandas,polars,duckdb]'`. PENSTOCK_SERVER names the broker.
"""

from __future__ import annotations

import duckdb
import polars as pl

import penstock


def main() -> None:
    """Sum the totals of all orders in three ways."""
    with penstock.connect() as client:
        orders = client.to_table("shop", decode="json")  # pyarrow.Table: offset, …, headers, total

    found = duckdb.execute("SELECT subject, count(*), sum(total) FROM orders GROUP BY subject ORDER BY subject")
    for subject, count, total in found.fetchall():
        print(f"DuckDB: {subject} has {count} orders, total {total}")

    print(f"Polars: total {pl.DataFrame(orders)['total'].sum()}")

    messages = orders.to_pandas()
    print(f"pandas: {messages.groupby('subject').size().to_dict()}")


if __name__ == "__main__":
    main()
