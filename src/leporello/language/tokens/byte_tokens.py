"""Bytes of UTF-8 as tokens: 256 ids for every text there is, one to four of them a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from leporello.errors import FileMismatch
from leporello.language.text.pieces import at_borders, in_lengths
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


# ---- (language.tokens.bpe) Byte pairs merged by how often they occur (BPE): tokens from single bytes to whole words, for every text there is.
#
# Gage 1994, Sennrich et al. 2016; on bytes, as Radford et al. 2019. Learned and encoded by the package tokenizers; what
# an id stands for is read from its JSON, so that decoding never cuts a character. Shortcoming: a long
# text without blanks, as a Chinese one, is learned from up to a few million characters (learning takes time and memory in
# proportion to different words, and there every sentence is one); all of it is encoded.

AT_ONCE = 1 << 14  # characters in one of the texts that are encoded side by side
LEARNED_BYTES = 6_000_000  # of different words: two million Chinese characters, hundreds of millions of English ones
LETTERS_TOGETHER = re.compile(r"\w+")


def _letters() -> dict[str, int]:
    """The letter that stands for each byte in vocabularies: itself where it can be seen, else one from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{chr(byte): byte for byte in seen}, **{chr(256 + n): byte for n, byte in enumerate(hidden)}}


LETTERS = _letters()


class BPE(InBytes):
    """contents   the JSON of the package tokenizers, read"""

    kind = "bpe"

    def __init__(self, contents: dict[str, Any]) -> None:
        tokenizers = _tokenizers()
        self._bytes = _bytes_by_id(contents)
        self.size = len(self._bytes)
        self._contents = contents
        try:
            self._encoder = tokenizers.Tokenizer.from_str(json.dumps(contents))
        except Exception as error:  # the package raises nothing more exact
            raise FileMismatch("the record holds no merged pairs.", says=error) from error

    @classmethod
    def fitted(cls, pieces: Iterable[str], size: int) -> BPE:
        """Merges are learned until there are so many tokens, or no pair occurs twice."""
        tokenizers = _tokenizers()
        learner = tokenizers.Tokenizer(tokenizers.models.BPE())
        learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, show_progress=False, initial_alphabet=sorted(LETTERS), special_tokens=[]
        )
        texts = (text for piece in at_borders(pieces) for text in in_lengths(whole(piece), AT_ONCE))
        learner.train_from_iterator(_enough(texts), trainer)
        return cls(json.loads(learner.to_str()))

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> BPE:
        contents = record.get("tokenizers")
        if not isinstance(contents, dict):
            raise FileMismatch("the record holds no merged pairs.", expected="the JSON of the package tokenizers")
        return cls(contents)

    def encode(self, text: str) -> Tensor:
        texts = list(in_lengths(whole(text), AT_ONCE))
        found = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return torch.cat([torch.tensor(one.ids, dtype=torch.int32) for one in found])

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Tensor]:
        return map(self.encode, at_borders(pieces))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokenizers": self._contents}


def _enough(texts: Iterator[str]) -> Iterator[str]:
    """The texts until they hold enough different words."""
    words: set[str] = set()
    size = 0
    for text in texts:
        yield text
        new = set(LETTERS_TOGETHER.findall(text)) - words
        words |= new
        size += sum(len(word.encode()) for word in new)
        if size > LEARNED_BYTES:
            return


def _bytes_by_id(contents: dict[str, Any]) -> list[bytes]:
    """What each id stands for, if this is a vocabulary of bytes without gaps or additions."""
    try:
        model, before = contents["model"], contents["pre_tokenizer"]
        expected = model["type"] == "BPE" and before["type"] == "ByteLevel" and not contents["added_tokens"]
        ids: dict[str, int] = model["vocab"]
        tokens = sorted(ids, key=lambda token: ids[token])
        found = [bytes(LETTERS[letter] for letter in token) for token in tokens]
    except (KeyError, TypeError, AttributeError) as error:
        raise FileMismatch("the record holds no pairs of bytes.", expected="a byte-level BPE") from error
    if not expected or sorted(ids.values()) != list(range(len(ids))) or not LETTERS.keys() <= ids.keys():
        raise FileMismatch("the record holds no pairs of bytes.", expected="a byte-level BPE with all 256 bytes")
    return found


def _tokenizers() -> ModuleType:
    try:
        import tokenizers  # here, because `import leporello` needs torch alone
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise ImportError("bpe:N needs the package tokenizers: pip install 'leporello[language]'") from error
    return tokenizers
