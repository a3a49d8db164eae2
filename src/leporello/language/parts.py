"""`Corpus` and `Part`: a text as tokens, and what was counted of it; as a record that JSON can hold, and back.

Knows counts; knows nothing of how texts are encoded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from leporello.errors import FileMismatch
from leporello.language.encoded import DTYPES
from leporello.language.tokens.tokenizer import Tokenizer

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
