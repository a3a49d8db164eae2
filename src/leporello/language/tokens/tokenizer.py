"""`Tokenizer`: text to ids, ids to text at once or one by one, and the tokenizer itself to JSON and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError

REPLACEMENT = "\ufffd"  # the text of the unknown symbol and of malformed bytes


class Decoder(ABC):
    """Text from ids that come one by one, in complete characters."""

    @abstractmethod
    def push(self, id: int) -> str:
        """The text that this id completes; "" while a character lacks bytes."""

    def flush(self) -> str:
        """The text at the end: U+FFFD for a character that was never completed."""
        return ""


class Tokenizer(ABC):
    """Splits texts into tokens.

    kind      char, byte, word, bpe
    size      the number of tokens, the unknown symbol included
    unknown   the id of the unknown symbol; None where every text can be written
    """

    kind: str
    size: int
    unknown: int | None

    @abstractmethod
    def encode(self, text: str) -> Tensor:
        """The ids of a text, int32 [tokens]."""

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Tensor]:
        """The ids of a text in pieces. They do not depend on where it is cut."""
        return map(self.encode, pieces)

    @abstractmethod
    def decode(self, ids: Tensor | Sequence[int]) -> str:
        """The text of ids; U+FFFD for the unknown symbol."""

    @abstractmethod
    def decoder(self) -> Decoder:
        """A decoder for ids that come one by one."""

    @abstractmethod
    def symbol(self, id: int) -> str:
        """One token to show, with visible blanks and line ends."""

    @abstractmethod
    def first_token_size(self, id: int, text: str) -> tuple[int, int]:
        """The characters and UTF-8 bytes of the first token of a text. An incomplete character does not count.

        id     of that token
        text   that begins with it
        """

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """A JSON object from which `tokenizer_from_record` makes the same tokenizer."""

    def _checked(self, ids: Tensor | Sequence[int]) -> list[int]:
        """The ids as a list; one outside the vocabulary is refused."""
        listed: list[int] = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if listed and not (min(listed) >= 0 and max(listed) < self.size):
            outside = next(id for id in listed if not 0 <= id < self.size)
            raise ArgumentError("there is no such token.", came=outside, expected=f"ids from 0 to {self.size - 1}")
        return listed


def visible_token(text: str) -> str:
    """A token with visible blanks and line ends.

    >>> visible_token(" day\\n")
    '␣day\\\\n'
    """
    return "".join("␣" if c == " " else c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_lone_surrogates(text: str) -> str:
    """The text, with U+FFFD for lone surrogates, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def tensor_of_bytes(contents: bytes | bytearray, dtype: torch.dtype) -> Tensor:
    """(count,) bytes read as values of a dtype. The tensor shares the memory of a bytearray; bytes are copied."""
    if not contents:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(contents) if isinstance(contents, bytes) else contents, dtype=dtype)
