"""Bytes to characters, piece by piece: a byte that does not fit is told with its place in the whole file.

Knows codecs; knows nothing of files, and does not choose an encoding.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

BYTE_ORDER_MARK = "\ufeff"


class Misfit(Exception):
    """A byte that the encoding does not allow: told to whoever knows the file, never to the user as it is."""

    def __init__(self, byte: int, offset: int) -> None:
        super().__init__(f"byte 0x{byte:02X} at offset {offset}")


def decoded(chunks: Iterable[bytes], encoding: str) -> Iterator[str]:
    """The text of bytes, without its byte order mark; no character is cut, whatever the chunks.

    >>> "".join(decoded([b"gr\\xc3", b"\\xbcn"], "utf-8"))
    'grün'
    """
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    fed, begun = 0, False
    for chunk in chain(chunks, [b""]):
        fed += len(chunk)
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:  # its bytes are those held back and the chunk: they end where it ends
            raise Misfit(error.object[error.start], fed - len(error.object) + error.start) from error
        except UnicodeError as error:  # utf-16 and utf-32 without a byte order mark
            raise Misfit(chunk[0], 0) from error
        if text and not begun:
            begun = True
            text = text.removeprefix(BYTE_ORDER_MARK)
        if text:
            yield text
