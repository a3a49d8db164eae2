"""A tokenizer in a file: JSON with the version of the format, the record, and a digest of it.

Knows the file; what the record means is the tokenizer's own affair.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from leporello.errors import FileMismatch
from leporello.language.tokens.kinds import tokenizer_from
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.whole import write_whole

FORMAT = "leporello vocabulary"
VERSION = 1


def write_vocabulary(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer to a file, whole or not at all."""
    record = tokenizer.record()
    contents = {"format": FORMAT, "version": VERSION, "sha256": digest_of(record), "tokenizer": record}
    write_whole(path, (json.dumps(contents, ensure_ascii=False) + "\n").encode())


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
