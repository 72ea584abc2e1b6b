"""What can go wrong in a simulated test, beside what the test itself finds."""

from __future__ import annotations


class NotSimulatedError(RuntimeError):
    """A program wanted what the simulation does not have: a thread, a socket of the machine, TLS, a blocking sleep."""


class SpinningError(RuntimeError):
    """A program goes round and round and waits for nothing, so simulated time hardly passes."""


class NotLiveError(AssertionError):
    """Something has not happened within its simulated time: the test did not end, or the cluster did not settle."""


class ProgramError(AssertionError):
    """A program has ended with an error that no fault excuses."""
