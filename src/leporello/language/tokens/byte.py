"""Bytes of UTF-8 as tokens: 256 ids for every text there is, one to four of them a character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from leporello.language.tokens.tokenizer import InBytes, numbers, whole


class Byte(InBytes):
    """
    >>> Byte().encode("é!").tolist()
    [195, 169, 33]
    """

    kind = "byte"
    size = 256
    _bytes = [bytes([id]) for id in range(256)]

    @classmethod
    def fitted(cls, pieces: Iterable[str]) -> Byte:
        """Needs no text."""
        return cls()

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Byte:
        return cls()

    def encode(self, text: str) -> Tensor:
        return numbers(whole(text).encode(), torch.uint8).to(torch.int32)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind}
