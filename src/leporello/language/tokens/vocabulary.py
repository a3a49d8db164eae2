"""The vocabulary of a text: `fit_tokenizer` makes it, files keep it, `refuse_unknown` checks another text against it.

A vocabulary file is JSON: the version of the format, the record of the tokenizer, and a digest of the record.
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
from leporello.language.text.text_pieces import cut_at_borders
from leporello.language.tokens.byte_tokens import BPE, Byte
from leporello.language.tokens.text_tokens import Char, TextTokenizer, Word
from leporello.language.tokens.tokenizer import Tokenizer, visible_token

TOKENIZER_OF_KIND: dict[str, Callable[[dict[str, Any]], Tokenizer]] = {
    Char.kind: Char.from_record,
    Byte.kind: Byte.from_record,
    Word.kind: Word.from_record,
    BPE.kind: BPE.from_record,
}
KINDS = ("char", "byte", "word", "bpe:N")
BPE_SIZES = range(257, 1_000_001)  # 256 of the tokens are the single bytes
FORMAT = "leporello vocabulary"
VERSION = 1


def fit_tokenizer(kind: str, pieces: Iterable[str], *, min_count: int = 1) -> Tokenizer:
    """A tokenizer for a text.

    kind        char, byte, word, or bpe:N for N tokens at most
    pieces      of the text
    min_count   for char and word: characters or words that occur less often are unknown

    >>> fit_tokenizer("char", ["abra", "cadabra"], min_count=2).decode([1, 2, 3, 0])
    'abr\\ufffd'
    """
    kind, size = parse_kind(kind)
    if not isinstance(min_count, int) or min_count < 1:
        raise ArgumentError(
            "the argument 'min_count' is out of range.", came=min_count, expected="an integer from 1 on"
        )
    if kind == "char":
        return Char.fit(pieces, min_count)
    if kind == "word":
        return Word.fit(pieces, min_count)
    if min_count > 1:
        raise ArgumentError(f"nothing is unknown to {kind}.", came=f"min_count={min_count}", expected="min_count=1")
    return Byte.fit(pieces) if size is None else BPE.fit(pieces, size)


def parse_kind(kind: str) -> tuple[str, int | None]:
    """The name of a kind of tokens and, for bpe, the number of tokens.

    >>> parse_kind("bpe:1000"), parse_kind("word")
    (('bpe', 1000), ('word', None))
    """
    name, colon, size = str(kind).partition(":")
    if name in ("char", "byte", "word") and not colon:
        return name, None
    if name == "bpe":
        return name, _bpe_size(kind, size)
    near = difflib.get_close_matches(name.lower(), ("char", "byte", "word", "bpe", "characters", "bytes"), n=1)
    raise ArgumentError(
        f"there are no tokens named '{kind}'.",
        nearest={"bpe": "bpe:N", "characters": "char", "bytes": "byte"}.get(near[0], near[0]) if near else None,
        expected=", ".join(KINDS),
    )


def _bpe_size(kind: str, size: str) -> int:
    """The number N of bpe:N."""
    if not (size.isascii() and size.isdigit() and len(size) < 10 and int(size) in BPE_SIZES):
        raise ArgumentError(
            "bpe needs the number of tokens.",
            came=kind,
            expected=f"bpe:N, N from {BPE_SIZES[0]} to {BPE_SIZES[-1]}",
            tries="bpe:1000",
        )
    return int(size)


def tokenizer_from_record(record: Any) -> Tokenizer:
    """The tokenizer whose `record` this is.

    >>> tokenizer_from_record({"kind": "char", "characters": "abc"}).size
    4
    """
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in TOKENIZER_OF_KIND:
        raise FileMismatch(
            "this is no record of a tokenizer.",
            came=type(record).__name__ if kind is None else f"kind {kind!r}",
            expected=f"one of {', '.join(TOKENIZER_OF_KIND)}",
        )
    return TOKENIZER_OF_KIND[kind](record)


def write_vocabulary(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer to a file, atomically."""
    record = tokenizer.record()
    contents = {"format": FORMAT, "version": VERSION, "sha256": digest_of(record), "tokenizer": record}
    write_atomically(path, json.dumps(contents, ensure_ascii=False) + "\n")


def read_vocabulary(path: Path) -> Tokenizer:
    """The tokenizer of a file; a damaged file, or one that is no vocabulary, is refused."""
    contents = _json_in(path)
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
        return tokenizer_from_record(record)
    except FileMismatch as error:
        error.place(file=str(path))
        raise


def digest_of(record: Any) -> str:
    """sha256 of a record, which does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _json_in(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise FileMismatch("the vocabulary cannot be read.", file=path, says=error.strerror or error) from error
    except (ValueError, RecursionError) as error:
        raise FileMismatch("the vocabulary is damaged or cut: it is no JSON.", file=path, says=error) from error


def refuse_unknown(pieces: Callable[[], Iterator[str]], border: int, tokenizer: Tokenizer) -> None:
    """Refuse a text with a token that is not in the vocabulary: which one, how often it occurs, and where first.

    Nothing is unknown to tokenizers of bytes.

    pieces   the text from its start, each time it is called
    border   the index of the character where validation begins
    """
    if not isinstance(tokenizer, TextTokenizer):
        return
    token, index, line = _first_unknown(pieces(), tokenizer)
    if token:
        what = "word" if any(map(str.isalnum, token)) and tokenizer.kind == "word" else "character"
        count = sum(tokenizer.split(piece).count(token) for piece in _cut_between_tokens(pieces(), tokenizer))
        code = f" (U+{ord(token):04X})" if what == "character" else ""
        raise ArgumentError(
            f"the {what} '{visible_token(token)}'{code} is not in the vocabulary of the training part.",
            came=f"{count} time{'s'[: count != 1]}, first as character {index + 1} of the text, in line {line}",
            part="validation" if index >= border else "training",
            tries="unknown='symbol', a smaller min_count, or byte or bpe:N, to which nothing is unknown",
        )


def _first_unknown(pieces: Iterator[str], tokenizer: TextTokenizer) -> tuple[str, int, int]:
    """The text of the first unknown token, the index of its first character, and its line; "" if there is none."""
    offset, line = 0, 1
    for piece in _cut_between_tokens(pieces, tokenizer):
        unknown = (tokenizer.encode(piece) == tokenizer.unknown).nonzero()
        if unknown.numel():
            first = int(unknown[0])
            tokens = tokenizer.split(piece)
            before = "".join(tokens[:first])
            return tokens[first], offset + len(before), line + before.count("\n")
        offset += len(piece)
        line += piece.count("\n")
    return "", offset, line


def _cut_between_tokens(pieces: Iterator[str], tokenizer: TextTokenizer) -> Iterator[str]:
    """The text in pieces that cut no token."""
    return pieces if tokenizer.kind == "char" else cut_at_borders(pieces)
