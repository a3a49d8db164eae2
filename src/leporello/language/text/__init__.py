"""Texts from files, folders, standard input and memory, as pieces of str that can be read again and again."""

from leporello.language.text.normalise import normalised
from leporello.language.text.sources import Source, source_of

__all__ = ["Source", "normalised", "source_of"]
