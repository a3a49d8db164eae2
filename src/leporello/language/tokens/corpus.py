"""`corpus_of`: a text as tokens in a memory-mapped array, parted into training and validation, with a digest.

The text goes by in pieces, a few times: to be counted, to be learned from, to be encoded. It is never in memory as a
whole. Knows texts, tokenizers and the file of tokens; knows nothing of networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError, FileMismatch
from leporello.language.text.normalise import normalised
from leporello.language.text.pieces import before_blank, stretch
from leporello.language.text.sources import Source
from leporello.language.tokens.token_file import (
    DTYPES,
    Digest,
    Writer,
    dtype_for,
    mapped,
    refuse_other_length,
    token_file,
)
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.tokens.vocabulary import UNKNOWNS, fitted, parsed, refuse_unknown

__all__ = ["Corpus", "Part", "corpus_of", "opened"]

Pieces = Callable[[], Iterator[str]]  # the text from its start, as often as it is called


def corpus_of(
    source: Source,
    *,
    kind: str = "char",
    min_count: int = 1,
    unknown: str = "symbol",
    validation: float = 0.1,
    first: int = 0,
    normalise: str = "none",
    file: Path | None = None,
    tokenizer: Tokenizer | None = None,
) -> Corpus:
    """Encode a text.

    kind         of tokens: char, byte, word, bpe:N; learned from the training part alone
    min_count    of char and word: what occurs less often is unknown
    unknown      what is not in the vocabulary: symbol, it becomes the unknown symbol; error, it is refused
    validation   the share of characters at the end that is not trained on; 0: no such part. A word is not cut
    first        take so many characters only; 0: all
    normalise    none, lower, letters
    file         where the tokens go, whole or not at all; None: a temporary file that vanishes
    tokenizer    one that exists already; kind and min_count then say nothing

    >>> corpus = corpus_of(Source.of_text("to be or not to be"), validation=0.25)
    >>> corpus.tokenizer.decode(corpus.validation.tokens)
    'o be'
    """
    _refuse(unknown, validation, first)
    name = parsed(kind)[0] if tokenizer is None else tokenizer.kind

    def pieces() -> Iterator[str]:
        return stretch(normalised(source.pieces(), normalise), 0, first or None)

    characters = sum(map(len, pieces()))
    border = characters - round(characters * validation)
    if validation and name == "word":
        border = before_blank(pieces(), border)
    if tokenizer is None:
        tokenizer = fitted(kind, stretch(pieces(), 0, border), min_count=min_count)
    if unknown == "error":
        refuse_unknown(pieces, border, tokenizer)
    return _encoded(pieces, border, characters, tokenizer, bool(validation), file, source.name)


def _refuse(unknown: str, validation: float, first: int) -> None:
    if unknown not in UNKNOWNS:
        raise ArgumentError("the argument 'unknown' is none of its values.", came=unknown, expected=", ".join(UNKNOWNS))
    if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 <= validation < 1:
        raise ArgumentError(
            "the argument 'validation' is no share.", came=validation, expected="a number from 0 to below 1"
        )
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ArgumentError("the argument 'first' is no number of characters.", came=first, expected="0 or more")


def _encoded(
    pieces: Pieces,
    border: int,
    characters: int,
    tokenizer: Tokenizer,
    with_validation: bool,
    file: Path | None,
    name: str,
) -> Corpus:
    dtype = dtype_for(tokenizer.size)
    digest = Digest(dtype, tokenizer.record())
    with token_file(file) as handle:
        writer = Writer(handle, dtype, digest)
        train = _written(writer, stretch(pieces(), 0, border), tokenizer)
        validation = _written(writer, stretch(pieces(), border), tokenizer) if with_validation else None
        _refuse_short(train, validation)
        if train.characters + (validation.characters if validation else 0) != characters:
            raise ArgumentError("the text changed while it was read.", text=name, tries="the same again")
        handle.flush()
        length = train.length + (validation.length if validation else 0)
        tokens = mapped(handle.name, dtype, length)  # of a file that is renamed or vanishes the mapping stays
    return parted(tokens, tokenizer, train, validation, digest.over(train.length), name)


def _written(writer: Writer, texts: Iterator[str], tokenizer: Tokenizer) -> Counts:
    """Encode a part, and count it as it goes by."""
    characters = size = tokens = unknown = 0
    beginning = ""

    def counted() -> Iterator[str]:
        nonlocal characters, size, beginning
        for text in texts:
            beginning = beginning or text
            characters += len(text)
            size += len(text.encode())
            yield text

    first = (0, 0)
    for ids in tokenizer.encode_pieces(counted()):
        if tokens == 0 and ids.numel():
            first = tokenizer.first(int(ids[0]), beginning)
        tokens += ids.numel()
        if tokenizer.unknown is not None:
            unknown += int(torch.count_nonzero(ids == tokenizer.unknown))
        writer.write(ids)
    return Counts(tokens, characters, size, unknown, *first)


def _refuse_short(train: Counts, validation: Counts | None) -> None:
    def told(counts: Counts) -> str:
        return f"{counts.length} tokens of {counts.characters} characters"

    if min(counts.length for counts in (train, validation) if counts) < 2:
        raise ArgumentError(
            "the text is too short.",
            training=told(train),
            validation=told(validation) if validation else None,
            expected="2 tokens or more in each part",
            tries="a longer text, or another share for validation (0: none)",
        )


def opened(file: Path, tokenizer: Tokenizer, record: dict[str, Any]) -> Corpus:
    """The corpus of a file of tokens, without its text; a damaged file, or that of another text, is refused.

    record   what `Corpus.record` gave when it was written
    """
    train, validation = counts_in(record)
    dtype, length = record["dtype"], train.length + (validation.length if validation else 0)
    refuse_other_length(file, dtype, length)
    tokens = mapped(file, dtype, length)
    digest = Digest(dtype, tokenizer.record())
    digest.add(tokens)
    if digest.over(train.length) != record["digest"]:
        raise FileMismatch(
            "the tokens are damaged, or those of another text or vocabulary.",
            file=file,
            came=f"digest {digest.over(train.length)[:12]}",
            expected=f"digest {record['digest'][:12]}",
        )
    return parted(tokens, tokenizer, train, validation, record["digest"], record["source"])


# ---- (language.parts) `Corpus` and `Part`: a text as tokens, and what was counted of it; as a record that JSON can hold, and back.
#
# Knows counts; knows nothing of how texts are encoded.

VERSION = 1


@dataclass(frozen=True)
class Counts:
    """What was counted of a part's text.

    length             how many tokens
    characters, bytes  of its text; bytes in UTF-8
    unknown            how many tokens are the unknown symbol
    first_characters, first_bytes   of its first token, which is read and not predicted
    """

    length: int
    characters: int
    bytes: int
    unknown: int
    first_characters: int
    first_bytes: int


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a corpus: its tokens, [length] uint8 or int32, mapped from a file; and its counts."""

    tokens: Tensor
    characters: int
    bytes: int
    unknown: int
    first_characters: int
    first_bytes: int

    @staticmethod
    def of(tokens: Tensor, counts: Counts) -> Part:
        told = asdict(counts)
        del told["length"]
        return Part(tokens, **told)

    @property
    def counts(self) -> Counts:
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tokens"}
        return Counts(self.tokens.numel(), **told)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens.

    digest   sha256 over dtype, tokenizer, border and tokens
    source   the name of the text, for people
    """

    tokenizer: Tokenizer
    train: Part
    validation: Part | None
    digest: str
    source: str

    def record(self) -> dict[str, Any]:
        """All but tokens and tokenizer: JSON can hold it, and `opened` takes it."""
        return {
            "version": VERSION,
            "dtype": str(self.train.tokens.dtype).removeprefix("torch."),
            "train": asdict(self.train.counts),
            "validation": asdict(self.validation.counts) if self.validation else None,
            "digest": self.digest,
            "source": self.source,
        }


def parted(
    tokens: Tensor, tokenizer: Tokenizer, train: Counts, validation: Counts | None, digest: str, source: str
) -> Corpus:
    """A corpus of all its tokens, those of the training part first."""
    return Corpus(
        tokenizer,
        Part.of(tokens[: train.length], train),
        Part.of(tokens[train.length :], validation) if validation else None,
        digest,
        source,
    )


def counts_in(record: Any) -> tuple[Counts, Counts | None]:
    """The counts of the parts in a record of `Corpus.record`; another record is refused."""
    try:
        if record["version"] != VERSION:
            raise ValueError(f"version {record['version']}")
        if record["dtype"] not in DTYPES or not all(isinstance(record[name], str) for name in ("digest", "source")):
            raise ValueError("dtype, digest or source are none")
        train = _counts(record["train"])
        validation = None if record["validation"] is None else _counts(record["validation"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileMismatch(
            "the record of the tokens is damaged, or of another version.", says=error, expected=f"version {VERSION}"
        ) from error
    return train, validation


def _counts(told: Any) -> Counts:
    if not isinstance(told, dict) or not all(type(number) is int and number >= 0 for number in told.values()):
        raise ValueError("counts that are none")
    return Counts(**told)
