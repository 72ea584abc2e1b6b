"""Order and cycles of things that need each other, without recursion: typedefs, services, constants."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

CYCLES_MAX = 50
"""Most cycles that one search returns."""

NAMES_MAX = 10
"""Most names of a cycle that its text has."""

Node = TypeVar("Node", bound=Hashable)


def sort(needs: Mapping[Node, Sequence[Node]]) -> tuple[list[Node], list[list[Node]]]:
    """Return the nodes, each behind those that it needs, and some of the cycles: [a, b] if a needs b and b needs a.

    In a graph with cycles the order is that of a graph without the needs that close them. Costs time in proportion to
    nodes and needs.
    """
    order: list[Node] = []
    cycles: list[list[Node]] = []
    path: dict[Node, int] = {}  # the nodes between the first and the current one, with their places
    done: set[Node] = set()
    for first in needs:
        if first in done:
            continue
        path[first] = 0
        stack = [(first, iter(needs[first]))]
        while stack:
            node, left = stack[-1]
            for needed in left:
                if needed in path:
                    if len(cycles) < CYCLES_MAX:
                        cycles.append(list(path)[path[needed] :])
                elif needed not in done and needed in needs:
                    path[needed] = len(path)
                    stack.append((needed, iter(needs[needed])))
                    break
            else:
                stack.pop()
                del path[node]
                done.add(node)
                order.append(node)
    return order, cycles


def cycle_text(names: Sequence[str], verb: str) -> str:
    """Return a cycle in words: `"a" needs "b" needs "a"`."""
    shown = [f'"{name}"' for name in names[:NAMES_MAX]]
    rest = [f"{len(names) - NAMES_MAX:,} others"] if len(names) > NAMES_MAX else []
    return f" {verb} ".join([*shown, *rest, shown[0]])
