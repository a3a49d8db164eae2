"""Which encoding bytes are in: the one that is told, or the one that is found.

Found are UTF-8, UTF-16, UTF-32 with a byte order mark, GB18030 and Big5. An encoding in which every byte is a
character, as latin-1, is never found: it fits anything, and so tells nothing. Knows bytes; knows nothing of files.
"""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from encodings.aliases import aliases

from leporello.errors import ArgumentError
from leporello.language.text.binary import known_format, many_controls
from leporello.language.text.decoding import Misfit, decoded
from leporello.language.text.frequent import KANA, Likeness

Read = Callable[[], Iterator[bytes]]  # the bytes from the start, as often as it is called

MARKS = (  # byte order marks; the longer one first where one begins like another
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
# What is tried when bytes are not UTF-8, and the share of frequent characters that is enough.
CANDIDATES = {
    "gb18030": 0.3,
    "big5": 0.3,
    "cp950": 0.3,  # Big5 as Windows writes it
    "big5hkscs": 0.3,  # Big5 with the characters of Hong Kong
    "utf-16-le": 0.5,
    "utf-16-be": 0.5,
}
NO_TEXT = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"}


@dataclass(frozen=True)
class Finding:
    """The encoding; or why the bytes are no text; or the first byte that is not UTF-8, where nothing fits."""

    encoding: str | None = None
    binary: str | None = None
    misfit: str | None = None


def named_encoding(name: str) -> str:
    """The encoding of a name, in Python's spelling.

    >>> named_encoding("GBK"), named_encoding("latin1")
    ('gbk', 'iso8859-1')
    """
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError) as error:
        raise _unknown(name) from error
    if not found._is_text_encoding or found.name in NO_TEXT:
        raise _unknown(name)
    return "utf-8" if found.name == "utf-8-sig" else found.name


def _unknown(name: str) -> ArgumentError:
    spelt = name.lower().replace("-", "_")
    known = {*aliases, *aliases.values()} - {other.replace("-", "_") for other in NO_TEXT}
    near = [found.replace("_", "-") for found in difflib.get_close_matches(spelt, sorted(known), n=3)]
    return ArgumentError(
        f"there is no encoding named '{name}'.",
        nearest=", ".join(near) or None,
        expected="auto, or a name such as utf-8, utf-16, gb18030, big5, latin-1",
        tries="--encoding NAME",
    )


def find_encoding(read: Read) -> Finding:
    """Look at all bytes and say what they are in.

    >>> find_encoding(lambda: iter(["你好，世界".encode("gb18030")])).encoding
    'gb18030'
    """
    head = next(read(), b"")[: 1 << 16]
    if what := known_format(head):
        return Finding(binary=what)
    for mark, encoding in MARKS:
        if head.startswith(mark):
            return Finding(encoding)
    nul, misfit = _survey(read)
    controls = many_controls(head)
    if nul is None and misfit is None:
        return Finding(binary=controls) if controls else Finding("utf-8")
    if plausible := _most_plausible(read):
        return Finding(plausible)
    if nul is not None:
        return Finding(binary=f"a NUL byte at offset {nul}")
    return Finding(binary=controls) if controls else Finding(misfit=misfit)


def _survey(read: Read) -> tuple[int | None, str | None]:
    """The offset of the first NUL byte, or the first byte that is not UTF-8; neither in a text in UTF-8."""
    found: list[int] = []

    def watched() -> Iterator[bytes]:
        fed = 0
        for chunk in read():
            if (place := chunk.find(0)) >= 0:
                found.append(fed + place)
                return
            fed += len(chunk)
            yield chunk

    try:
        for _ in decoded(watched(), "utf-8"):
            pass
    except Misfit as misfit:  # of a character that the NUL byte cut, too
        return (found[0], None) if found else (None, str(misfit))
    return (found[0], None) if found else (None, None)


def _most_plausible(read: Read) -> str | None:
    if _share(read, "euc_jp", Likeness(KANA)) > 0.3:  # Japanese, which may look like Chinese in Big5
        return None
    shares = {
        encoding: _share(read, encoding, Likeness(with_ascii=encoding.startswith("utf-16"))) for encoding in CANDIDATES
    }
    best = max(CANDIDATES, key=lambda encoding: shares[encoding])  # of equals the first
    return best if shares[best] >= CANDIDATES[best] else None


def _share(read: Read, encoding: str, likeness: Likeness) -> float:
    """How much of the text in this encoding looks like one; 0 if a byte does not fit."""
    try:
        for text in decoded(read(), encoding):
            likeness.add(text)
    except Misfit:
        return 0.0
    return likeness.share
