"""`fitted` and `tokenizer_from`: the kinds of tokenizers by name.

Knows the names; what each kind does is in a file of its own.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from leporello.atomic_write import write_atomically
from leporello.errors import ArgumentError, FileMismatch
from leporello.language.text.pieces import at_borders
from leporello.language.tokens.byte_tokens import BPE, Byte
from leporello.language.tokens.text_tokens import Char, Word
from leporello.language.tokens.tokenizer import InTexts, Tokenizer, shown

RECORDS: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    Char.kind: Char.of_record,
    Byte.kind: Byte.of_record,
    Word.kind: Word.of_record,
    BPE.kind: BPE.of_record,
}
NAMES = ("char", "byte", "word", "bpe:N")
SIZES = range(257, 1_000_001)  # of bpe:N; 256 of them are the single bytes


def fitted(kind: str, pieces: Iterable[str], *, min_count: int = 1) -> Tokenizer:
    """A tokenizer for a text.

    kind        char, byte, word, or bpe:N for N tokens at most
    pieces      the text
    min_count   of char and word: what occurs less often is unknown

    >>> fitted("char", ["abra", "cadabra"], min_count=2).decode([1, 2, 3, 0])
    'abr\\ufffd'
    """
    kind, size = parsed(kind)
    if not isinstance(min_count, int) or min_count < 1:
        raise ArgumentError(
            "the argument 'min_count' is out of range.", came=min_count, expected="an integer from 1 on"
        )
    if kind == "char":
        return Char.fitted(pieces, min_count)
    if kind == "word":
        return Word.fitted(pieces, min_count)
    if min_count > 1:
        raise ArgumentError(f"nothing is unknown to {kind}.", came=f"min_count={min_count}", expected="min_count=1")
    return Byte.fitted(pieces) if size is None else BPE.fitted(pieces, size)


def parsed(kind: str) -> tuple[str, int | None]:
    """The kind of tokens and, for bpe, how many.

    >>> parsed("bpe:1000"), parsed("word")
    (('bpe', 1000), ('word', None))
    """
    name, colon, size = str(kind).partition(":")
    if name in ("char", "byte", "word") and not colon:
        return name, None
    if name == "bpe":
        return name, _size_in(kind, size)
    near = difflib.get_close_matches(name.lower(), ("char", "byte", "word", "bpe", "characters", "bytes"), n=1)
    raise ArgumentError(
        f"there are no tokens named '{kind}'.",
        nearest={"bpe": "bpe:N", "characters": "char", "bytes": "byte"}.get(near[0], near[0]) if near else None,
        expected=", ".join(NAMES),
    )


def _size_in(kind: str, size: str) -> int:
    if not (size.isascii() and size.isdigit() and len(size) < 10 and int(size) in SIZES):
        raise ArgumentError(
            "bpe needs the number of tokens.",
            came=kind,
            expected=f"bpe:N, N from {SIZES[0]} to {SIZES[-1]}",
            tries="bpe:1000",
        )
    return int(size)


def tokenizer_from(record: Any) -> Tokenizer:
    """The tokenizer that gave this record.

    >>> tokenizer_from({"kind": "char", "characters": "abc"}).size
    4
    """
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in RECORDS:
        raise FileMismatch(
            "this is no record of a tokenizer.",
            came=type(record).__name__ if kind is None else f"kind {kind!r}",
            expected=f"one of {', '.join(RECORDS)}",
        )
    return RECORDS[kind](record)


# ---- (language.tokens.written) A tokenizer in a file: JSON with the version of the format, the record, and a digest of it.
#
# Knows the file; what the record means is the tokenizer's own affair.

FORMAT = "leporello vocabulary"
VERSION = 1


def write_vocabulary(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer to a file, whole or not at all."""
    record = tokenizer.record()
    contents = {"format": FORMAT, "version": VERSION, "sha256": digest_of(record), "tokenizer": record}
    write_atomically(path, (json.dumps(contents, ensure_ascii=False) + "\n").encode())


def read_vocabulary(path: Path) -> Tokenizer:
    """The tokenizer of a file; a damaged file, or one of something else, is refused."""
    contents = _contents_in(path)
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise FileMismatch("the file is no vocabulary.", file=path, expected="a file of write_vocabulary")
    if contents.get("version") != VERSION:
        raise FileMismatch(
            "the file has another version of the format.", file=path, came=contents.get("version"), expected=VERSION
        )
    record = contents.get("tokenizer")
    if contents.get("sha256") != digest_of(record):
        raise FileMismatch("the vocabulary is damaged: it differs from its digest.", file=path)
    try:
        return tokenizer_from(record)
    except FileMismatch as error:
        error.place(file=str(path))
        raise


def digest_of(record: Any) -> str:
    """The same for the same record, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _contents_in(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise FileMismatch("the vocabulary cannot be read.", file=path, says=error.strerror or error) from error
    except (ValueError, RecursionError) as error:
        raise FileMismatch("the vocabulary is damaged or cut: it is no JSON.", file=path, says=error) from error


# ---- (language.unknowns) Refuse a text with something that is not in the vocabulary: what it is, how often it occurs, and where first.
#
# Knows texts and tokenizers; knows nothing of files.

UNKNOWNS = ("symbol", "error")


def refuse_unknown(pieces: Callable[[], Iterator[str]], border: int, tokenizer: Tokenizer) -> None:
    """border   the character where validation begins"""
    if not isinstance(tokenizer, InTexts):
        return
    token, place, line = _first_unknown(pieces(), tokenizer)
    if token:
        what = "word" if any(map(str.isalnum, token)) and tokenizer.kind == "word" else "character"
        count = sum(tokenizer.split(piece).count(token) for piece in _as_it_splits(pieces(), tokenizer))
        code = f" (U+{ord(token):04X})" if what == "character" else ""
        raise ArgumentError(
            f"the {what} '{shown(token)}'{code} is not in the vocabulary of the training part.",
            came=f"{count} time{'s'[: count != 1]}, first as character {place + 1} of the text, in line {line}",
            part="validation" if place >= border else "training",
            tries="unknown='symbol', a smaller min_count, or byte or bpe:N, to which nothing is unknown",
        )


def _first_unknown(pieces: Iterator[str], tokenizer: InTexts) -> tuple[str, int, int]:
    """The text of the first unknown token, its place and line; no text without one."""
    place, line = 0, 1
    for piece in _as_it_splits(pieces, tokenizer):
        unknown = (tokenizer.encode(piece) == tokenizer.unknown).nonzero()
        if unknown.numel():
            index = int(unknown[0])
            tokens = tokenizer.split(piece)
            before = "".join(tokens[:index])
            return tokens[index], place + len(before), line + before.count("\n")
        place += len(piece)
        line += piece.count("\n")
    return "", place, line


def _as_it_splits(pieces: Iterator[str], tokenizer: InTexts) -> Iterator[str]:
    return pieces if tokenizer.kind == "char" else at_borders(pieces)
