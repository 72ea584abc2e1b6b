"""Starts and watches broker processes: one for each broker of a machine, restarted when it ends.

`penstock serve` calls `supervisor.run_machine`; each child runs `broker.serve`.
"""
