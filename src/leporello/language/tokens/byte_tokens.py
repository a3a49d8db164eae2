"""Tokenizers whose tokens are bytes of UTF-8: `Byte`, and `BPE`, byte pairs merged by how often they occur.

BPE: Gage 1994, Sennrich et al. 2016; on bytes, Radford et al. 2019. The package tokenizers learns merges and encodes;
decoding reads its JSON, so that no character is cut. Shortcoming: of a long text without blanks, such as a Chinese one,
merges are learned from the first few million characters. Learning takes time and memory in proportion to the number of
different words, and there every sentence is one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from leporello.errors import FileMismatch, MissingPackage
from leporello.language.text.text_pieces import cut_at_borders, cut_to_length
from leporello.language.tokens.tokenizer import (
    Decoder,
    Tokenizer,
    tensor_of_bytes,
    visible_token,
    without_lone_surrogates,
)

TEXT_CHARACTERS = 1 << 14  # of one text in the batch that the package encodes in parallel
MAX_LEARNED_BYTES = 6_000_000  # of different words: two million Chinese characters, or hundreds of millions of English
WORD_CHARACTERS = re.compile(r"\w+")


def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for, as in GPT-2.

    A printable byte is the character of its own number; the others are characters from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + n): byte for n, byte in enumerate(others)}}


BYTE_OF_LETTER = _byte_of_letter()


class ByteTokenizer(Tokenizer):
    """A tokenizer whose tokens are bytes of UTF-8. Nothing is unknown, but a token may be half a character."""

    unknown = None
    _bytes: Sequence[bytes]  # by id

    def decode(self, ids: Tensor | Sequence[int]) -> str:
        return b"".join([self._bytes[id] for id in self._checked(ids)]).decode("utf-8", "replace")

    def decoder(self) -> Decoder:
        return _BytesDecoder(self)

    def symbol(self, id: int) -> str:
        (id,) = self._checked([id])
        return visible_token(self._bytes[id].decode("utf-8", "backslashreplace"))

    def first_token_size(self, id: int, text: str) -> tuple[int, int]:
        token = self._bytes[id]
        return len(token.decode("utf-8", "ignore")), len(token)

    def bytes_of(self, id: int) -> bytes:
        """The bytes of one token."""
        (id,) = self._checked([id])
        return self._bytes[id]


class _BytesDecoder(Decoder):
    """Holds bytes back until they complete a character."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(self._tokenizer.bytes_of(id))

    def flush(self) -> str:
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


class Byte(ByteTokenizer):
    """The 256 bytes as tokens: one to four of them a character.

    >>> Byte().encode("é!").tolist()
    [195, 169, 33]
    """

    kind = "byte"
    size = 256
    _bytes = [bytes([id]) for id in range(256)]

    @classmethod
    def fit(cls, pieces: Iterable[str]) -> Byte:
        """The tokenizer; it is the same for every text."""
        return cls()

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Byte:
        return cls()

    def encode(self, text: str) -> Tensor:
        return tensor_of_bytes(without_lone_surrogates(text).encode(), torch.uint8).to(torch.int32)

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind}


class BPE(ByteTokenizer):
    """Byte pairs merged by how often they occur: tokens from single bytes to words.

    contents   the parsed JSON of the package tokenizers
    """

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
    def fit(cls, pieces: Iterable[str], size: int) -> BPE:
        """Learn merges until there are `size` tokens, or no pair occurs twice."""
        tokenizers = _tokenizers()
        learner = tokenizers.Tokenizer(tokenizers.models.BPE())
        learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=sorted(BYTE_OF_LETTER),
            special_tokens=[],
        )
        texts = (text for piece in cut_at_borders(pieces) for text in _texts_in(piece))
        learner.train_from_iterator(_up_to_enough_words(texts), trainer)
        return cls(json.loads(learner.to_str()))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> BPE:
        contents = record.get("tokenizers")
        if not isinstance(contents, dict):
            raise FileMismatch("the record holds no merged pairs.", expected="the JSON of the package tokenizers")
        return cls(contents)

    def encode(self, text: str) -> Tensor:
        encodings = self._encoder.encode_batch_fast(list(_texts_in(text)), add_special_tokens=False)
        return torch.cat([torch.tensor(encoding.ids, dtype=torch.int32) for encoding in encodings])

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Tensor]:
        return map(self.encode, cut_at_borders(pieces))

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "tokenizers": self._contents}


def _texts_in(piece: str) -> Iterator[str]:
    """A piece cut to texts that the package encodes in parallel."""
    return cut_to_length(without_lone_surrogates(piece), TEXT_CHARACTERS)


def _up_to_enough_words(texts: Iterator[str]) -> Iterator[str]:
    """The texts until their different words have `MAX_LEARNED_BYTES`."""
    words: set[str] = set()
    word_bytes = 0
    for text in texts:
        yield text
        new = set(WORD_CHARACTERS.findall(text)) - words
        words |= new
        word_bytes += sum(len(word.encode()) for word in new)
        if word_bytes > MAX_LEARNED_BYTES:
            return


def _bytes_by_id(contents: dict[str, Any]) -> list[bytes]:
    """The bytes of each id; a vocabulary that is not byte-level, or has gaps or added tokens, is refused."""
    try:
        model, before = contents["model"], contents["pre_tokenizer"]
        expected = model["type"] == "BPE" and before["type"] == "ByteLevel" and not contents["added_tokens"]
        ids: dict[str, int] = model["vocab"]
        tokens = sorted(ids, key=lambda token: ids[token])
        bytes_by_id = [bytes(BYTE_OF_LETTER[letter] for letter in token) for token in tokens]
    except (KeyError, TypeError, AttributeError) as error:
        raise FileMismatch("the record holds no pairs of bytes.", expected="a byte-level BPE") from error
    if not expected or sorted(ids.values()) != list(range(len(ids))) or not BYTE_OF_LETTER.keys() <= ids.keys():
        raise FileMismatch("the record holds no pairs of bytes.", expected="a byte-level BPE with all 256 bytes")
    return bytes_by_id


def _tokenizers() -> ModuleType:
    """The optional package tokenizers."""
    try:
        import tokenizers  # here, because `import leporello` needs torch alone
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise MissingPackage(
            "bpe:N needs the package tokenizers.", tries="pip install 'leporello[language]', or char, byte or word"
        ) from error
    return tokenizers
