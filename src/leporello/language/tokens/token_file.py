"""Tokens in a file: written piece by piece with a digest, then mapped into memory, where they take no room.

The file holds nothing but the tokens, uint8 or int32, one after another; what they mean is told by a record that the
caller keeps. Knows numbers and files; knows nothing of texts.
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
AT_ONCE = 1 << 24  # tokens hashed at once


def dtype_for(size: int) -> str:
    """The smallest kind of number that holds as many tokens."""
    return "uint8" if size <= 256 else "int32"


class Digest:
    """sha256 over dtype, the tokenizer's record, the tokens, and where the training part ends."""

    def __init__(self, dtype: str, record: dict[str, Any]) -> None:
        self._hash = hashlib.sha256(f"{dtype}\n{json.dumps(record, sort_keys=True)}\n".encode())

    def add(self, tokens: Tensor) -> None:
        for part in tokens.split(AT_ONCE):
            if part.numel():
                self._hash.update(_contents(part))

    def over(self, border: int) -> str:
        whole = self._hash.copy()
        whole.update(f"\n{border}\n".encode())
        return whole.hexdigest()


class Writer:
    """Takes tokens into a file and its digest."""

    def __init__(self, handle: IO[bytes], dtype: str, digest: Digest) -> None:
        self._handle = handle
        self._dtype = DTYPES[dtype]
        self._digest = digest

    def write(self, tokens: Tensor) -> None:
        tokens = tokens.to(self._dtype).contiguous()
        self._digest.add(tokens)
        if tokens.numel():
            self._handle.write(_contents(tokens))


@contextmanager
def token_file(file: Path | None) -> Iterator[IO[bytes]]:
    """A file to write tokens into: the named one, whole or not at all, or a temporary one that vanishes.

    Whoever has mapped the temporary one before it vanishes keeps the tokens.
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


def mapped(file: Path | str, dtype: str, length: int) -> Tensor:
    """The tokens of a file, read from it where they are used; writing to them changes no file."""
    if length == 0:
        return torch.empty(0, dtype=DTYPES[dtype])
    return torch.from_file(str(file), shared=False, size=length, dtype=DTYPES[dtype])


def refuse_other_length(file: Path, dtype: str, length: int) -> None:
    """A file that is cut would end the process where its end is read."""
    try:
        there = os.stat(file).st_size
    except OSError as error:
        raise FileMismatch("the tokens cannot be read.", file=file, says=error.strerror or error) from error
    expected = length * DTYPES[dtype].itemsize
    if there != expected:
        raise FileMismatch(
            "the tokens are cut, or those of another text.",
            file=file,
            came=f"{there} bytes",
            expected=f"{expected} bytes: {length} tokens as {dtype}",
        )


def _contents(tokens: Tensor) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a tensor, not copied; it must outlive them."""
    return (ctypes.c_char * (tokens.numel() * tokens.itemsize)).from_address(tokens.data_ptr())
