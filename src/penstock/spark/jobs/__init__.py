"""The jobs: `archive` and `replay` between log and lake, `audit`, `table`, and `run` for a user's function.

Users call a job's function from `penstock.spark`, or as a command of `penstock pipeline`. No other package of
`penstock.spark` imports a job, and no job imports another one.
"""
