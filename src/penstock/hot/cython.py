"""Stands in for Cython's module of this name where Cython is not installed: it is needed to compile, not to run."""

compiled = False
