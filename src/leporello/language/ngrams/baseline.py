"""`baseline`: what a text gives away without a network: the uniform model, and n-grams of several orders.

Knows models and rows; knows nothing of how rows are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from leporello.errors import ArgumentError
from leporello.language.ngrams.kneser_ney import KneserNey, refuse_order
from leporello.language.ngrams.row import Row
from leporello.language.perplexity import Uniform, perplexity_of


def baseline(
    train: Tensor,
    validation: Tensor,
    size: int,
    orders: Sequence[int],
    characters: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Rows of the uniform model and of an n-gram model of each order, learnt on one text and scored on another.

    train, validation   (length,) integers from 0 to size - 1
    orders              counted once, up to the highest; the seconds of a row are those of its own orders and scoring
    characters          of the validation text but its first token, for bits per character
    progress            called with the pieces of work that are done and how many there are

    >>> text = torch.tensor([0, 1, 2] * 7)
    >>> [row.name for row in baseline(text, text, size=3, orders=[1, 2])]
    ['uniform', '1-gram', '2-gram']
    """
    if not orders:
        raise ArgumentError("there is no order to measure.", came="none", expected="one or more", tries="orders=[3]")
    for order in orders:
        refuse_order(order)
    highest = max(orders)
    done, work = 0, 1 + highest + len(orders)

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, work)

    began = time.perf_counter()
    scores = perplexity_of(Uniform(size), validation)
    rows = [Row.of("uniform", scores, characters, seconds=time.perf_counter() - began)]
    advance()

    counting_seconds: list[float] = []  # until orders 1, 2, ... were counted
    began = time.perf_counter()

    def counted(order: int) -> None:
        counting_seconds.append(time.perf_counter() - began)
        advance()

    models = KneserNey.fit(train, size, highest, counted).orders()
    for order in orders:
        model = models[order - 1]
        began_scoring = time.perf_counter()
        scores = perplexity_of(model, validation)
        seconds = counting_seconds[order - 1] + time.perf_counter() - began_scoring
        rows.append(Row.of(f"{order}-gram", scores, characters, order=order, stored=model.stored, seconds=seconds))
        advance()
    return rows
