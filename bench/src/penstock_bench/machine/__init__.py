"""The use of this machine by a run: child processes and their CPU time, a Penstock function in its own process,
counters of the kernel, facts for the report, and the folder of the logs.

Every other package may call it; it knows no product.
"""
