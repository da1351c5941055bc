"""The Pareto front: the cells that no other beats in both memory and speed. Pure arithmetic, nothing about records."""

import math
from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Positions in `points`, each (memory, speed), of those that no other point dominates, least memory first.

    A point dominates another that needs no less memory and is no faster, if it is better in one of the two. Equal
    points are on the front together. Raises ValueError for NaN, which has no place in an order.
    """
    if any(math.isnan(value) for point in points for value in point):
        raise ValueError("a point of a Pareto front is not a number")
    kept: list[int] = []
    for position in sorted(range(len(points)), key=lambda n: (points[n][0], -points[n][1])):
        last = points[kept[-1]] if kept else (-math.inf, -math.inf)
        if points[position] == last or points[position][1] > last[1] or not kept:
            kept.append(position)
    return tuple(kept)
