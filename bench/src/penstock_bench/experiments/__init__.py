"""Experiments: each measures one property of Penstock, such as compaction or many streams, and gives figures with
their goals. `experiment` runs those that take turns; `data_dirs` makes logs without a broker.

The commands and `runs` may call them. An experiment does not call another one.
"""
