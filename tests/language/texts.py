"""Texts to train on that are made here, and the corpora of them."""

from __future__ import annotations

import itertools
from functools import cache

from leporello.language.text.sources import Source
from leporello.language.tokens.corpus import Corpus, corpus_of

ANIMALS = ("cat", "dog", "cow", "hen", "owl", "rat")
DEEDS = ("sees", "hears", "likes", "meets", "fears")


def rhyme(sentences: int = 60) -> str:
    """Sentences with a small vocabulary, the same each time."""
    triples = itertools.product(ANIMALS, DEEDS, ANIMALS)
    turns = itertools.cycle(triples)
    return "".join(f"the {a} {b} the {c}.\n" for a, b, c in itertools.islice(turns, sentences))


@cache
def small_corpus(validation: float = 0.1) -> Corpus:
    return corpus_of(Source.of_text(rhyme()), validation=validation)
