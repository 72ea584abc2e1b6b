"""What a run uses of this machine: child processes and their CPU time, a Penstock function in a process of its own,
counters of the kernel, facts for the report, and the folder of the logs.

Every other package may call it; it knows no product.
"""
