"""The slow twin of `KneserNey`: dictionaries, the formulas of Chen and Goodman, one token at a time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

Gram = tuple[int, ...]


def by_hand(text: Sequence[int], size: int, order: int) -> ByHand:
    """Of order N: counts of N-grams; below, the numbers of different tokens that stand before an n-gram."""
    counts = [Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))]
    for n in range(order - 1, 0, -1):
        before = {(text[i], tuple(text[i + 1 : i + 1 + n])) for i in range(len(text) - n)}
        counts.insert(0, Counter(gram for _, gram in before))
    return ByHand(size, counts)


class ByHand:
    def __init__(self, size: int, counts: list[Counter[Gram]]) -> None:
        self.size, self.counts = size, counts
        self.discounts = [_discounts(list(count.values())) for count in counts]
        self.following: list[dict[Gram, list[int]]] = []  # of each context, the counts of what follows it
        for count in counts:
            following = defaultdict(list)
            for gram, times in count.items():
                following[gram[:-1]].append(times)
            self.following.append(following)

    def probability(self, token: int, context: Gram) -> float:
        return self._mixed(token, context[max(0, len(context) - len(self.counts) + 1) :])

    def _mixed(self, token: int, context: Gram) -> float:
        below = self._mixed(token, context[1:]) if context else 1 / self.size
        following = self.following[len(context)].get(context)
        if not following:
            return below
        discounts = self.discounts[len(context)]
        times = self.counts[len(context)][*context, token]
        kept = max(times - discounts[min(times, 3)], 0) if times else 0
        handed = sum(discounts[min(times, 3)] for times in following)
        return (kept + handed * below) / sum(following)

    def surprises(self, text: Sequence[int]) -> list[float]:
        longest = len(self.counts) - 1
        return [-math.log(self.probability(text[i], tuple(text[max(0, i - longest) : i]))) for i in range(1, len(text))]


def _discounts(counts: list[int]) -> dict[int, float]:
    n1, n2, n3, n4 = (counts.count(r) for r in (1, 2, 3, 4))
    found = {1: 0.5, 2: 1.0, 3: 1.5}
    if n1 and n2:
        y = n1 / (n1 + 2 * n2)
        found[1] = 1 - 2 * y * n2 / n1
        if n3 and (estimate := 2 - 3 * y * n3 / n2) > 0:
            found[2] = estimate
        if n3 and n4 and (estimate := 3 - 4 * y * n4 / n3) > 0:
            found[3] = estimate
    return found
