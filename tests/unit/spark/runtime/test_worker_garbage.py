"""In a worker of Spark what is loaded is exempt from garbage collection, once; other processes are left alone."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, importlib.machinery, sys

from penstock.spark.runtime import worker_garbage


class Node:
    alive = 0

    def __init__(self):
        self.itself = self
        Node.alive += 1

    def __del__(self):
        Node.alive -= 1


gc.disable()
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec(sys.argv[1], None)
Node()
worker_garbage.exempt_loaded()
exempt, kept = gc.get_freeze_count(), Node.alive
Node()
worker_garbage.exempt_loaded()
more = gc.get_freeze_count() - exempt
gc.collect()
print(exempt > 1_000, kept, more <= 0, Node.alive)
"""


def said_by(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_in_a_worker_what_is_garbage_already_is_freed_before_and_what_becomes_it_after() -> None:
    assert said_by("pyspark.daemon") == ["True", "0", "True", "0"]


def test_another_process_is_left_alone() -> None:
    assert said_by("penstock.cli") == ["False", "1", "True", "0"]
