"""What every tokenizer does: text to ids, ids to text, ids to text one by one, itself to JSON.

Knows ids and characters; knows nothing of files, nor of how one tokenizer differs from another.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError

UNKNOWN = "\ufffd"  # what an unknown symbol and malformed bytes are decoded to


class Decoder(ABC):
    """Text from ids that come one by one: what is given out is made of whole characters."""

    @abstractmethod
    def push(self, id: int) -> str:
        """The text that this id completes; "" where a character still lacks bytes."""

    def rest(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return ""


class Tokenizer(ABC):
    """A way to part texts into tokens.

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
        """The ids of a text in pieces: the same wherever it is cut."""
        return map(self.encode, pieces)

    @abstractmethod
    def decode(self, ids: Tensor | Sequence[int]) -> str:
        """The text of ids; U+FFFD for the unknown symbol."""

    @abstractmethod
    def decoder(self) -> Decoder: ...

    @abstractmethod
    def symbol(self, id: int) -> str:
        """One token, to be shown: blanks and line ends can be seen."""

    @abstractmethod
    def first(self, id: int, text: str) -> tuple[int, int]:
        """Characters and bytes (of UTF-8) in the first token of a text; a character that goes on in the next is none.

        id   of that token
        """

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """What `tokenizer_from` makes the same tokenizer of; JSON can hold it."""

    def _listed(self, ids: Tensor | Sequence[int]) -> list[int]:
        listed: list[int] = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if listed and not (min(listed) >= 0 and max(listed) < self.size):
            outside = next(id for id in listed if not 0 <= id < self.size)
            raise ArgumentError("there is no such token.", came=outside, expected=f"ids from 0 to {self.size - 1}")
        return listed


class InTexts(Tokenizer):
    """A tokenizer each of whose tokens is a text of its own; id 0 is unknown."""

    unknown = 0
    _texts: Sequence[str]  # by id; U+FFFD at 0

    @abstractmethod
    def split(self, text: str) -> Sequence[str]:
        """The text of each token, known or not: joined they are the text."""

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        return "".join([self._texts[id] for id in self._listed(ids)])

    def decoder(self) -> Decoder:
        return _TextDecoder(self)

    def symbol(self, id: int) -> str:
        (id,) = self._listed([id])
        return shown(self._texts[id]) if id else "<unknown>"

    def first(self, id: int, text: str) -> tuple[int, int]:
        token = self._texts[id] if id else self.split(text)[0]
        return len(token), len(token.encode())


class InBytes(Tokenizer):
    """A tokenizer each of whose tokens is some bytes of UTF-8: nothing is unknown, but one may be half a character."""

    unknown = None
    _bytes: Sequence[bytes]  # by id

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        return b"".join([self._bytes[id] for id in self._listed(ids)]).decode("utf-8", "replace")

    def decoder(self) -> Decoder:
        return _BytesDecoder(self)

    def symbol(self, id: int) -> str:
        (id,) = self._listed([id])
        return shown(self._bytes[id].decode("utf-8", "backslashreplace"))

    def first(self, id: int, text: str) -> tuple[int, int]:
        token = self._bytes[id]
        return len(token.decode("utf-8", "ignore")), len(token)

    def bytes_of(self, id: int) -> bytes:
        (id,) = self._listed([id])
        return self._bytes[id]


class _TextDecoder(Decoder):
    def __init__(self, tokenizer: InTexts) -> None:
        self._tokenizer = tokenizer

    def push(self, id: int) -> str:
        return self._tokenizer.decode([id])


class _BytesDecoder(Decoder):
    def __init__(self, tokenizer: InBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._tokenizer.bytes_of(id))

    def rest(self) -> str:
        left = self._decoder.decode(b"", True)
        self._decoder.reset()
        return left


def shown(text: str) -> str:
    """A token with its blanks and line ends to be seen.

    >>> shown(" day\\n")
    '␣day\\\\n'
    """
    return "".join("␣" if c == " " else c if c.isprintable() else ascii(c)[1:-1] for c in text)


def whole(text: str) -> str:
    """The text, with U+FFFD for halves of characters, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def numbers(contents: bytes | bytearray, dtype: torch.dtype) -> Tensor:
    """Bytes as the numbers they are."""
    if not contents:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(contents) if isinstance(contents, bytes) else contents, dtype=dtype)
