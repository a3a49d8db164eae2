"""Arithmetic on plain lists, row by row: the slow twin that steps are tested against. Uses no tensor operation."""

from __future__ import annotations

import math

Vector = list[float]


def product(matrix: list[Vector], vector: Vector) -> Vector:
    return [sum(weight * value for weight, value in zip(row, vector, strict=True)) for row in matrix]


def total(*vectors: Vector) -> Vector:
    return [sum(values) for values in zip(*vectors, strict=True)]


def times(*vectors: Vector) -> Vector:
    return [math.prod(values) for values in zip(*vectors, strict=True)]


def mix(share: float | Vector, new: Vector, old: Vector) -> Vector:
    """share new + (1 - share) old."""
    shares = share if isinstance(share, list) else [share] * len(new)
    return [s * n + (1 - s) * o for s, n, o in zip(shares, new, old, strict=True)]


def tanh(vector: Vector) -> Vector:
    return [math.tanh(a) for a in vector]


def relu(vector: Vector) -> Vector:
    return [max(a, 0.0) for a in vector]


def softplus(vector: Vector) -> Vector:
    return [math.log1p(math.exp(a)) for a in vector]


def sigmoid(vector: Vector) -> Vector:
    return [1 / (1 + math.exp(-a)) for a in vector]


def parts(vector: list, count: int) -> list[list]:
    """Equal parts of a vector, or of a matrix's rows."""
    size = len(vector) // count
    assert size * count == len(vector)
    return [vector[k * size : (k + 1) * size] for k in range(count)]


def normalised(vector: Vector, eps: float = 1e-5) -> Vector:
    mean = sum(vector) / len(vector)
    variance = sum((a - mean) ** 2 for a in vector) / len(vector)
    return [(a - mean) / math.sqrt(variance + eps) for a in vector]
