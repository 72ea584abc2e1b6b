"""Settings of a broker: from flags, environment and file to checked values, and the checks of its data directory.

`penstock serve` and `broker.serve` call it before a start.
"""
