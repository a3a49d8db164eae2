"""Characters as tokens: id 0 is unknown, then come the characters in the order of their code points.

A table with a place for every code point there is turns a text into ids at hundreds of millions of characters a second.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError, FileMismatch
from leporello.language.text.pieces import at_borders
from leporello.language.tokens.tokenizer import UNKNOWN, InTexts, numbers, whole

CODE_POINTS = 0x110000


class Char(InTexts):
    """
    >>> chars = Char("abn")
    >>> chars.encode("banana!").tolist()
    [2, 1, 3, 1, 3, 1, 0]
    """

    kind = "char"

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self._texts = UNKNOWN + characters
        self.size = len(self._texts)

    @classmethod
    def fitted(cls, pieces: Iterable[str], min_count: int) -> Char:
        """The characters that occur at least so often."""
        counts = torch.zeros(CODE_POINTS, dtype=torch.int64)
        for piece in pieces:
            found = torch.bincount(_code_points(piece))  # up to the largest that occurs
            counts[: found.numel()] += found
        characters = "".join(map(chr, (counts >= min_count).nonzero().flatten().tolist()))
        if not characters:
            raise ArgumentError("no character occurs so often.", came=f"min_count={min_count}", tries="a smaller one")
        return cls(characters)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Char:
        characters = record.get("characters")
        if not isinstance(characters, str) or any(a >= b for a, b in pairwise(characters)):
            raise FileMismatch("the record holds no characters.", expected="a text of different characters, in order")
        return cls(characters)

    def encode(self, text: str) -> Tensor:
        return self._ids.index_select(0, _code_points(text))

    def split(self, text: str) -> str:
        return whole(text)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self._characters}

    @cached_property
    def _ids(self) -> Tensor:
        """[code points]: 4 MB, made when first needed."""
        ids = torch.zeros(CODE_POINTS, dtype=torch.int32)
        ids[_code_points(self._characters).long()] = torch.arange(1, self.size, dtype=torch.int32)
        return ids


def _code_points(text: str) -> Tensor:
    return numbers(whole(text).encode("utf-32-le"), torch.int32)


# ---- (language.tokens.word) Words as tokens: a word has its one leading blank with it; other blanks, line ends and marks stand alone.
#
# So a text can be put together again exactly. Id 0 is unknown, then come the words by how often they occur. Texts without
# blanks between words, as Chinese ones, are refused.

WORD = re.compile(r" ?\w+(?:['’]\w+)*|\s|[^\w\s]")
CHARACTERS_PER_BLANK = 50  # at most, where words are


class Word(InTexts):
    """
    >>> words = Word([" the", "the", ",", " cat"])
    >>> words.encode("the cat, the dog").tolist()
    [2, 4, 3, 1, 0]
    """

    kind = "word"

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._texts = [UNKNOWN, *words]
        self._ids = {word: id for id, word in enumerate(words, start=1)}
        self.size = len(self._texts)

    @classmethod
    def fitted(cls, pieces: Iterable[str], min_count: int) -> Word:
        """The words that occur at least so often."""
        counts: Counter[str] = Counter()
        characters = blanks = 0
        for piece in at_borders(pieces):
            characters += len(piece)
            blanks += piece.count(" ")
            counts.update(WORD.findall(whole(piece)))
        if blanks * CHARACTERS_PER_BLANK < characters:
            raise ArgumentError(
                "this text has no blanks between its words.",
                came=f"{blanks} blanks in {characters} characters",
                expected=f"at least one in {CHARACTERS_PER_BLANK}",
                tries="char, byte or bpe:N",
            )
        words = [word for word, count in counts.items() if count >= min_count]
        if not words:
            raise ArgumentError("no word occurs so often.", came=f"min_count={min_count}", tries="a smaller one")
        return cls(sorted(words, key=lambda word: (-counts[word], word)))

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Word:
        words = record.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise FileMismatch("the record holds no words.", expected="a list of texts")
        if len(set(words)) < len(words):
            raise FileMismatch("the record holds a word twice.")
        return cls(words)

    def encode(self, text: str) -> Tensor:
        ids = array("i", map(self._ids.get, self.split(text), repeat(0)))
        return torch.frombuffer(ids, dtype=torch.int32) if ids else torch.empty(0, dtype=torch.int32)

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Tensor]:
        return map(self.encode, at_borders(pieces))

    def split(self, text: str) -> list[str]:
        return WORD.findall(whole(text))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": self._words}
