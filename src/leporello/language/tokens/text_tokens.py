"""Tokenizers whose tokens are texts: `Char`, one for each character, and `Word`. Id 0 is the unknown symbol.

Characters go in the order of their code points, words by how often they occur.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError, FileMismatch
from leporello.language.text.text_pieces import cut_at_borders
from leporello.language.tokens.tokenizer import (
    REPLACEMENT,
    Decoder,
    Tokenizer,
    tensor_of_bytes,
    visible_token,
    without_lone_surrogates,
)

CODE_POINTS = 0x110000
WORD = re.compile(r" ?\w+(?:['’]\w+)*|\s|[^\w\s]")
MAX_CHARACTERS_PER_BLANK = 50  # of texts with blanks between words


class TextTokenizer(Tokenizer):
    """A tokenizer whose tokens are texts. Id 0 is the unknown symbol."""

    unknown = 0
    _texts: Sequence[str]  # by id; U+FFFD at 0

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """The text of each token, known or not. Joined they are the text."""

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        return "".join([self._texts[id] for id in self._checked(ids)])

    def decoder(self) -> Decoder:
        return _TextDecoder(self)

    def symbol(self, id: int) -> str:
        (id,) = self._checked([id])
        return visible_token(self._texts[id]) if id else "<unknown>"

    def first_token_size(self, id: int, text: str) -> tuple[int, int]:
        token = self._texts[id] if id else self.split(text)[0]
        return len(token), len(token.encode())


class _TextDecoder(Decoder):
    """Every token is complete by itself."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, id: int) -> str:
        return self._tokenizer.decode([id])


class Char(TextTokenizer):
    """Characters as tokens: ids follow the order of code points.

    A table with an entry for every code point encodes hundreds of millions of characters a second.

    >>> chars = Char("abn")
    >>> chars.encode("banana!").tolist()
    [2, 1, 3, 1, 3, 1, 0]
    """

    kind = "char"

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self._texts = REPLACEMENT + characters
        self.size = len(self._texts)

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int) -> Char:
        """The tokenizer of the characters that occur `min_count` times or more."""
        counts = torch.zeros(CODE_POINTS, dtype=torch.int64)
        for piece in pieces:
            piece_counts = torch.bincount(_code_points(piece))  # up to the largest that occurs
            counts[: piece_counts.numel()] += piece_counts
        characters = "".join(map(chr, (counts >= min_count).nonzero().flatten().tolist()))
        if not characters:
            raise ArgumentError("no character occurs so often.", came=f"min_count={min_count}", tries="a smaller one")
        return cls(characters)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Char:
        characters = record.get("characters")
        if not isinstance(characters, str) or any(a >= b for a, b in pairwise(characters)):
            raise FileMismatch("the record holds no characters.", expected="a text of different characters, in order")
        return cls(characters)

    def encode(self, text: str) -> Tensor:
        return self._ids.index_select(0, _code_points(text))

    def split(self, text: str) -> str:
        return without_lone_surrogates(text)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self._characters}

    @cached_property
    def _ids(self) -> Tensor:
        """(CODE_POINTS,) the id of each code point: 4 MB."""
        ids = torch.zeros(CODE_POINTS, dtype=torch.int32)
        ids[_code_points(self._characters).long()] = torch.arange(1, self.size, dtype=torch.int32)
        return ids


def _code_points(text: str) -> Tensor:
    return tensor_of_bytes(without_lone_surrogates(text).encode("utf-32-le"), torch.int32)


class Word(TextTokenizer):
    """Words as tokens, each with one blank before it if there is one. Other blanks, line ends and marks stand alone.

    Joined tokens are exactly the text. Texts without blanks between words, such as Chinese ones, are refused.

    >>> words = Word([" the", "the", ",", " cat"])
    >>> words.encode("the cat, the dog").tolist()
    [2, 4, 3, 1, 0]
    """

    kind = "word"

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._texts = [REPLACEMENT, *words]
        self._ids = {word: id for id, word in enumerate(words, start=1)}
        self.size = len(self._texts)

    @classmethod
    def fit(cls, pieces: Iterable[str], min_count: int) -> Word:
        """The tokenizer of the words that occur `min_count` times or more."""
        counts: Counter[str] = Counter()
        characters = blanks = 0
        for piece in cut_at_borders(pieces):
            characters += len(piece)
            blanks += piece.count(" ")
            counts.update(WORD.findall(without_lone_surrogates(piece)))
        if blanks * MAX_CHARACTERS_PER_BLANK < characters:
            raise ArgumentError(
                "this text has no blanks between its words.",
                came=f"{blanks} blanks in {characters} characters",
                expected=f"at least one in {MAX_CHARACTERS_PER_BLANK}",
                tries="char, byte or bpe:N",
            )
        words = [word for word, count in counts.items() if count >= min_count]
        if not words:
            raise ArgumentError("no word occurs so often.", came=f"min_count={min_count}", tries="a smaller one")
        return cls(sorted(words, key=lambda word: (-counts[word], word)))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Word:
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
        return map(self.encode, cut_at_borders(pieces))

    def split(self, text: str) -> list[str]:
        return WORD.findall(without_lone_surrogates(text))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": self._words}
