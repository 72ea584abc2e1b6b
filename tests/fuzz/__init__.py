"""Fuzzing of the hot path; see `tests.fuzz.run`."""
