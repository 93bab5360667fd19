"""A line search by the strong Wolfe conditions: how far to go along a direction, by cubic interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Point", "strong_wolfe"]

# Sufficient decrease, and how flat the slope must become.
_DECREASE, _FLATNESS = 1e-4, 0.9


class Point(NamedTuple):
    """What is known at one distance along the direction."""

    t: float
    loss: float
    grad: Any
    slope: float  # the directional derivative


def cubic_minimum(a: Point, b: Point, low: float, high: float) -> float:
    """Where the cubic through two points, with their slopes, is least; kept between `low` and `high`."""
    if a.t > b.t:
        a, b = b, a
    first = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = first * first - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    second = math.sqrt(square)
    divisor = b.slope - a.slope + 2 * second
    if divisor == 0:
        return (low + high) / 2
    return min(max(b.t - (b.t - a.t) * ((b.slope + second - first) / divisor), low), high)


def strong_wolfe(
    evaluate: Callable[[float], Point], start: Point, t: float, largest_move: float, tolerance: float, most: int
) -> tuple[Point, int]:
    """A point along the direction that is low and flat enough, and how often `evaluate` was called.

    `start` is the point at distance 0, `t` the first guess, `largest_move` the largest element of the direction, `most`
    how many guesses may follow the first.
    """
    search = _Search(evaluate, start, tolerance, most)
    return search.run(t, largest_move), search.evaluations


class _Search:
    def __init__(self, evaluate: Callable[[float], Point], start: Point, tolerance: float, most: int) -> None:
        self.evaluate, self.start, self.tolerance, self.most = evaluate, start, tolerance, most
        self.evaluations = 0
        self.turns = 0

    def at(self, t: float) -> Point:
        self.evaluations += 1
        return self.evaluate(t)

    def too_high(self, point: Point) -> bool:
        return point.loss > self.start.loss + _DECREASE * point.t * self.start.slope

    def flat(self, point: Point) -> bool:
        return abs(point.slope) <= -_FLATNESS * self.start.slope

    def run(self, t: float, largest_move: float) -> Point:
        """Go on until a bracket is found, then narrow it."""
        previous, point = self.start, self.at(t)
        while self.turns < self.most:
            if self.too_high(point) or (self.turns > 1 and point.loss >= previous.loss):
                return self.narrowed(previous, point, largest_move)
            if self.flat(point):
                return point
            if point.slope >= 0:
                return self.narrowed(previous, point, largest_move)
            t = cubic_minimum(previous, point, point.t + 0.01 * (point.t - previous.t), 10 * point.t)
            previous, point = point, self.at(t)
            self.turns += 1
        return self.start if self.start.loss <= point.loss else point

    def narrowed(self, one: Point, other: Point, largest_move: float) -> Point:
        """A point between the two, of which the lower one is kept as `low`."""
        low, high = (one, other) if one.loss <= other.loss else (other, one)
        stuck = False
        while self.turns < self.most and abs(high.t - low.t) * largest_move >= self.tolerance:
            t, stuck = self.next_guess(low, high, stuck)
            point = self.at(t)
            self.turns += 1
            if self.too_high(point) or point.loss >= low.loss:
                high = point
                if high.loss < low.loss:
                    low, high = high, low
                continue
            if self.flat(point):
                return point
            if point.slope * (high.t - low.t) >= 0:
                high = low
            low = point
        return low

    def next_guess(self, low: Point, high: Point, stuck: bool) -> tuple[float, bool]:
        """A distance between the two, away from the ends if the last guess was near one already."""
        left, right = min(low.t, high.t), max(low.t, high.t)
        t = cubic_minimum(low, high, left, right)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) >= margin:
            return t, False
        if not (stuck or t >= right or t <= left):
            return t, True
        return (right - margin if abs(t - right) < abs(t - left) else left + margin), False
