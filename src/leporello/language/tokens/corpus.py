"""`corpus_of`: a text as memory-mapped tokens, split into training and validation, with a digest.

The text is read in pieces several times: to count it, to fit the tokenizer, to encode it. It is never in memory as a
whole.
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
from leporello.language.text.sources import Source
from leporello.language.text.text_pieces import next_blank, sliced
from leporello.language.tokens.token_file import (
    DTYPES,
    CorpusDigest,
    TokenWriter,
    dtype_for,
    map_tokens,
    refuse_other_length,
    token_file,
)
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.tokens.vocabulary import fit_tokenizer, parse_kind, refuse_unknown

ReadPieces = Callable[[], Iterator[str]]  # the text from its start, each time it is called

VERSION = 1
UNKNOWN_CHOICES = ("symbol", "error")


@dataclass(frozen=True)
class PartCounts:
    """Counts of one part of a corpus.

    length              tokens
    characters, bytes   of its text, in UTF-8
    unknown             tokens that are the unknown symbol
    first_characters, first_bytes   of its first token, which is read and not predicted
    """

    length: int
    characters: int
    bytes: int
    unknown: int
    first_characters: int
    first_bytes: int


@dataclass(frozen=True, eq=False)
class CorpusPart:
    """The training or the validation part of a corpus.

    tokens   (length,) uint8 or int32, memory-mapped

    The other fields are those of `PartCounts`.
    """

    tokens: Tensor
    characters: int
    bytes: int
    unknown: int
    first_characters: int
    first_bytes: int

    @staticmethod
    def of(tokens: Tensor, counts: PartCounts) -> CorpusPart:
        """A part from its tokens and counts."""
        numbers = asdict(counts)
        del numbers["length"]
        return CorpusPart(tokens, **numbers)

    @property
    def counts(self) -> PartCounts:
        """The counts alone."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tokens"}
        return PartCounts(self.tokens.numel(), **numbers)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens.

    validation   None if no part of the text is for validation
    digest       sha256 of dtype, tokenizer, tokens and the index where validation begins (`CorpusDigest`)
    source       the name of the text, for people
    """

    tokenizer: Tokenizer
    train: CorpusPart
    validation: CorpusPart | None
    digest: str
    source: str

    def record(self) -> dict[str, Any]:
        """A JSON object with all but tokens and tokenizer, for `open_corpus`."""
        return {
            "version": VERSION,
            "dtype": str(self.train.tokens.dtype).removeprefix("torch."),
            "train": asdict(self.train.counts),
            "validation": asdict(self.validation.counts) if self.validation else None,
            "digest": self.digest,
            "source": self.source,
        }


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

    kind         of tokens: char, byte, word, bpe:N; fitted to the training part alone
    min_count    for char and word: what occurs less often is unknown
    unknown      "symbol": what is not in the vocabulary becomes the unknown symbol; "error": it is refused
    validation   the share of characters at the end that is not trained on; 0: no such part. For words it begins at
                 the next blank
    first        the number of characters to take; 0: all
    normalise    none, lower, letters
    file         where the tokens are written, atomically; None: a temporary file that is removed
    tokenizer    one that exists already; kind and min_count are then unused

    >>> corpus = corpus_of(Source.of_text("to be or not to be"), validation=0.25)
    >>> corpus.tokenizer.decode(corpus.validation.tokens)
    'o be'
    """
    _refuse_arguments(unknown, validation, first)
    name = parse_kind(kind)[0] if tokenizer is None else tokenizer.kind

    def pieces() -> Iterator[str]:
        return sliced(normalised(source.pieces(), normalise), 0, first or None)

    characters = sum(map(len, pieces()))
    border = characters - round(characters * validation)
    if validation and name == "word":
        border = next_blank(pieces(), border)
    if tokenizer is None:
        tokenizer = fit_tokenizer(kind, sliced(pieces(), 0, border), min_count=min_count)
    if unknown == "error":
        refuse_unknown(pieces, border, tokenizer)
    return _encode(pieces, border, characters, tokenizer, bool(validation), file, source.name)


def _refuse_arguments(unknown: str, validation: float, first: int) -> None:
    """Refuse arguments of `corpus_of` that are out of range."""
    if unknown not in UNKNOWN_CHOICES:
        raise ArgumentError(
            "the argument 'unknown' is none of its values.", came=unknown, expected=", ".join(UNKNOWN_CHOICES)
        )
    if isinstance(validation, bool) or not isinstance(validation, (int, float)) or not 0 <= validation < 1:
        raise ArgumentError(
            "the argument 'validation' is no share.", came=validation, expected="a number from 0 to below 1"
        )
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ArgumentError("the argument 'first' is no number of characters.", came=first, expected="0 or more")


def _encode(
    pieces: ReadPieces,
    border: int,
    characters: int,
    tokenizer: Tokenizer,
    with_validation: bool,
    file: Path | None,
    name: str,
) -> Corpus:
    """Encode both parts into one file.

    border       the index of the character where validation begins
    characters   that were counted; another number means that the text changed meanwhile
    """
    dtype = dtype_for(tokenizer.size)
    digest = CorpusDigest(dtype, tokenizer.record())
    with token_file(file) as handle:
        writer = TokenWriter(handle, dtype, digest)
        train = _encode_part(writer, sliced(pieces(), 0, border), tokenizer)
        validation = _encode_part(writer, sliced(pieces(), border), tokenizer) if with_validation else None
        _refuse_short(train, validation)
        if train.characters + (validation.characters if validation else 0) != characters:
            raise ArgumentError("the text changed while it was read.", text=name, tries="the same again")
        handle.flush()
        length = train.length + (validation.length if validation else 0)
        tokens = map_tokens(handle.name, dtype, length)  # stays valid when the file is renamed or removed
    return _corpus_of_tokens(tokens, tokenizer, train, validation, digest.hexdigest(train.length), name)


def _encode_part(writer: TokenWriter, texts: Iterator[str], tokenizer: Tokenizer) -> PartCounts:
    """Encode one part, write its tokens, and return its counts."""
    characters = size = length = unknown = 0
    first_text = ""

    def counted() -> Iterator[str]:
        nonlocal characters, size, first_text
        for text in texts:
            first_text = first_text or text
            characters += len(text)
            size += len(text.encode())
            yield text

    first_token_size = (0, 0)
    for ids in tokenizer.encode_pieces(counted()):
        if length == 0 and ids.numel():
            first_token_size = tokenizer.first_token_size(int(ids[0]), first_text)
        length += ids.numel()
        if tokenizer.unknown is not None:
            unknown += int(torch.count_nonzero(ids == tokenizer.unknown))
        writer.write(ids)
    return PartCounts(length, characters, size, unknown, *first_token_size)


def _refuse_short(train: PartCounts, validation: PartCounts | None) -> None:
    """Refuse a part with nothing to predict."""

    def in_words(counts: PartCounts) -> str:
        return f"{counts.length} tokens of {counts.characters} characters"

    if min(counts.length for counts in (train, validation) if counts) < 2:
        raise ArgumentError(
            "the text is too short.",
            training=in_words(train),
            validation=in_words(validation) if validation else None,
            expected="2 tokens or more in each part",
            tries="a longer text, or another share for validation (0: none)",
        )


def open_corpus(file: Path, tokenizer: Tokenizer, record: dict[str, Any]) -> Corpus:
    """The corpus of a token file. A damaged file, or that of another text, is refused.

    record   of the corpus that was written: `Corpus.record`
    """
    train, validation = _counts_in(record)
    dtype, length = record["dtype"], train.length + (validation.length if validation else 0)
    refuse_other_length(file, dtype, length)
    tokens = map_tokens(file, dtype, length)
    digest = CorpusDigest(dtype, tokenizer.record())
    digest.add(tokens)
    if digest.hexdigest(train.length) != record["digest"]:
        raise FileMismatch(
            "the tokens are damaged, or those of another text or vocabulary.",
            file=file,
            came=f"digest {digest.hexdigest(train.length)[:12]}",
            expected=f"digest {record['digest'][:12]}",
        )
    return _corpus_of_tokens(tokens, tokenizer, train, validation, record["digest"], record["source"])


def _corpus_of_tokens(
    tokens: Tensor, tokenizer: Tokenizer, train: PartCounts, validation: PartCounts | None, digest: str, source: str
) -> Corpus:
    """A corpus from the tokens of both parts, the training part first."""
    return Corpus(
        tokenizer,
        CorpusPart.of(tokens[: train.length], train),
        CorpusPart.of(tokens[train.length :], validation) if validation else None,
        digest,
        source,
    )


def _counts_in(record: Any) -> tuple[PartCounts, PartCounts | None]:
    """The counts of both parts in the record of a corpus, None for no validation; a damaged record is refused."""
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


def _counts(record: Any) -> PartCounts:
    if not isinstance(record, dict) or not all(type(number) is int and number >= 0 for number in record.values()):
        raise ValueError("counts that are none")
    return PartCounts(**record)
