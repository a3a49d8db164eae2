"""Tokens in a file: written piece by piece with a digest, then memory-mapped.

The file holds the tokens alone, as uint8 or int32. The record of the corpus says how many and what they mean.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from leporello.atomic_write import open_atomically
from leporello.errors import FileMismatch, LeporelloError

DTYPES = {"uint8": torch.uint8, "int32": torch.int32}
TOKENS_HASHED_AT_ONCE = 1 << 24


def dtype_for(size: int) -> str:
    """The smallest dtype for tokens of a vocabulary of this size."""
    return "uint8" if size <= 256 else "int32"


class CorpusDigest:
    """sha256 of a corpus: dtype, the tokenizer's record, the tokens, and the index where validation begins."""

    def __init__(self, dtype: str, record: dict[str, Any]) -> None:
        self._hash = hashlib.sha256(f"{dtype}\n{json.dumps(record, sort_keys=True)}\n".encode())

    def add(self, tokens: Tensor) -> None:
        """Take the next tokens into the digest."""
        for part in tokens.split(TOKENS_HASHED_AT_ONCE):
            if part.numel():
                self._hash.update(_buffer(part))

    def hexdigest(self, border: int) -> str:
        """The digest of the tokens so far, of which those from `border` on are for validation."""
        complete = self._hash.copy()
        complete.update(f"\n{border}\n".encode())
        return complete.hexdigest()


class TokenWriter:
    """Writes tokens to an open file in a dtype, and adds them to a digest."""

    def __init__(self, handle: IO[bytes], dtype: str, digest: CorpusDigest) -> None:
        self._handle = handle
        self._dtype = DTYPES[dtype]
        self._digest = digest

    def write(self, tokens: Tensor) -> None:
        """Write the next tokens."""
        tokens = tokens.to(self._dtype).contiguous()
        self._digest.add(tokens)
        if tokens.numel():
            self._handle.write(_buffer(tokens))


@contextmanager
def token_file(file: Path | None) -> Iterator[IO[bytes]]:
    """A file to write tokens into: the named one, atomically, or a temporary one, removed after the block.

    A mapping of the temporary file stays valid after its removal.
    """
    if file is not None:
        with open_atomically(file) as handle:
            yield handle
        return
    try:
        with tempfile.NamedTemporaryFile(prefix="leporello-", suffix=".tokens") as handle:
            yield handle
    except OSError as error:
        raise LeporelloError(
            "the tokens could not be kept in a temporary file.",
            folder=tempfile.gettempdir(),
            says=error.strerror or error,
            tries="TMPDIR=FOLDER with more room",
        ) from error


def map_tokens(file: Path | str, dtype: str, length: int) -> Tensor:
    """The tokens of a file, memory-mapped: read when they are used. Writing to them does not change the file."""
    if length == 0:
        return torch.empty(0, dtype=DTYPES[dtype])
    return torch.from_file(str(file), shared=False, size=length, dtype=DTYPES[dtype])


def refuse_other_length(file: Path, dtype: str, length: int) -> None:
    """Refuse a file that is not as long as its tokens. Reading a mapping beyond the end would kill the process."""
    try:
        size = os.stat(file).st_size
    except OSError as error:
        raise FileMismatch("the tokens cannot be read.", file=file, says=error.strerror or error) from error
    expected = length * DTYPES[dtype].itemsize
    if size != expected:
        raise FileMismatch(
            "the tokens are cut, or those of another text.",
            file=file,
            came=f"{size} bytes",
            expected=f"{expected} bytes: {length} tokens as {dtype}",
        )


def _buffer(tokens: Tensor) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a contiguous tensor without a copy. The tensor must outlive them."""
    return (ctypes.c_char * (tokens.numel() * tokens.itemsize)).from_address(tokens.data_ptr())
