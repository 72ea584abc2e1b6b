"""Files of the data directory that are not logs: what this broker was, ran and must not lose.

`node.control` reads them before a start, and refuses to start on an incomplete or older data directory.
"""
