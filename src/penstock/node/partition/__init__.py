"""One partition: admits, writes, commits and acks messages, and answers lookups in its log.

The parts of `node` that handle requests, replicate or maintain logs call it; it calls none of them.
"""
