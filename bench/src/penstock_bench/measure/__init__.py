"""Measurements: one system in one round, verified, the order of the rounds, and what many rounds amount to: medians,
ratios, percentiles.

`results`, `experiments` and `runs` may call it.
"""
