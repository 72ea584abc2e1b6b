"""Runs: comparisons of systems over many loads (`throughput`, `latency_run`), the limits of the machine, and the runs
that judge all goals (`reach`, `replicated`), which also include experiments.

Only the commands call them.
"""
