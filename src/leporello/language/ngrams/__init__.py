"""n-grams: what can be predicted from the last few tokens alone, by counting. What a network has to beat."""

from leporello.language.ngrams.baseline import baseline
from leporello.language.ngrams.kneser_ney import KneserNey
from leporello.language.ngrams.row import Row

__all__ = ["KneserNey", "Row", "baseline"]
