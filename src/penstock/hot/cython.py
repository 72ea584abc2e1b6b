"""Stub for the `cython` module, which is needed to compile, not to run."""

compiled = False
