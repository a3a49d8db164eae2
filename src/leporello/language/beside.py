"""The models that a network is shown beside: the uniform one and n-grams, on the same split, by the same code.

Knows rows and the file they are kept in; the models are told by `ngrams`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from leporello.language.corpus import Corpus
from leporello.language.ngrams.baseline import baseline
from leporello.language.ngrams.row import Row
from leporello.language.ngrams.table import as_dicts
from leporello.language.run import Run
from leporello.language.whole import write_whole

MOST = 50_000_000  # tokens from which counting would take longer than a cup of tea


def models_beside(
    corpus: Corpus, highest: int, run: Run | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Rows of the uniform model and of n-grams up to an order; read from the run's folder if they lie there."""
    if run is not None and run.ngrams_file.is_file():
        return [_row(one) for one in json.loads(run.ngrams_file.read_text(encoding="utf-8"))]
    if corpus.validation is None or not highest or len(corpus.train.tokens) > MOST:
        return []
    part = corpus.validation
    rows = baseline(
        corpus.train.tokens.long(),
        part.tokens.long(),
        corpus.tokenizer.size,
        range(1, highest + 1),
        part.characters - part.first_characters,
        progress,
    )
    if run is not None:
        write_whole(run.ngrams_file, json.dumps(as_dicts(rows), indent=1).encode())
    return rows


def _row(one: dict[str, Any]) -> Row:
    return Row(**{name: value for name, value in one.items() if name != "best_order"})
