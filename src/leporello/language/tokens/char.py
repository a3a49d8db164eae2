"""Characters as tokens: id 0 is unknown, then come the characters in the order of their code points.

A table with a place for every code point there is turns a text into ids at hundreds of millions of characters a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError, FileMismatch
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
