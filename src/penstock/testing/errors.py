"""Exceptions of a simulated test."""

from __future__ import annotations


class ViolationError(Exception):
    """A promise was broken."""


class NotSimulatedError(RuntimeError):
    """A program used something the simulation does not have: a thread, a process, a socket, TLS, a blocking sleep."""


class SpinningError(RuntimeError):
    """A program loops without waiting for anything, so simulated time hardly passes."""


class StuckError(BaseException):
    """A program blocks the simulation in real time: it computes or blocks without an await."""

    # Not an Exception, so that a program's own `except Exception` does not catch it.


class NotLiveError(AssertionError):
    """A simulated time limit has passed: the test did not end, or the cluster did not settle."""


class ProgramError(AssertionError):
    """A program has ended with an error that no fault can cause."""
