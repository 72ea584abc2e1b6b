"""The user's options of a read or a write, parsed: positions, conditions, and the options of a SQL table.

All that reads or writes imports it. Nothing here sends a request to a broker.
"""
