"""The engine `stepwise`: stages between the insides at once, insides step by step with torch's operators.

A sweep goes window by window, every stage in turn, so that what only one window needs is freed with it. Here is how
long windows are; `program` makes stages ready, `sweep` writes the function that runs them. Any device, any operator.
"""

from __future__ import annotations

from itertools import pairwise

WINDOW_ROWS = {"cpu": 512, "kernels": 4096}  # rows an at-once stage takes together: enough for a fast product
MANY_ROWS = 65536  # on other devices
WINDOWS = 12  # at least so many in a long sequence on the CPU: what one needs is then a small part of the whole
FEW_ROWS = 128  # below so many rows a window a product slows down


def windows(kind: str, reverse: bool, length: int, batch: int) -> list[tuple[int, int]]:
    """Stretches of steps in the order of the sweep, of about equal size.

    kind   "cpu" or another device; "kernels" where kernels run the insides; "alone" where nothing else runs
    """
    if kind == "alone":
        return [(0, length)]
    most = max(1, WINDOW_ROWS.get(kind, MANY_ROWS) // batch)
    count = max(1, -(-length // most))
    if kind == "cpu":
        count = max(count, min(WINDOWS, length, length * batch // FEW_ROWS))
    if count == 1:
        return [(0, length)]
    stretches = list(pairwise(length * index // count for index in range(count + 1)))
    return stretches[::-1] if reverse else stretches
