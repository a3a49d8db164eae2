"""Text coloured by surprise, for terminals and for pages: the more bits a token cost, the redder it stands.

Levels are fixed, so that two texts can be compared. The colours can be read on dark and on light terminals; where there
are none, marks stand below each line. Knows colours and bits; knows nothing of models.
"""

from __future__ import annotations

import html
import importlib
import itertools
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leporello.errors import ArgumentError, LeporelloError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


@dataclass(frozen=True)
class Level:
    """A stretch of surprises.

    least    bits from which it begins
    ink      of the letters; none for the reader's own
    ground   behind them; none for the reader's own
    mark     below them where there are no colours
    """

    least: float
    ink: str
    ground: str
    mark: str
    bold: bool = False

    @property
    def style(self) -> str:
        ground = f" on {self.ground}" if self.ground else ""
        return f"{'bold ' if self.bold else ''}{self.ink}{ground}"


# Of a middling brightness all of them, so that none is louder than the next on dark or on light.
LEVELS = (
    Level(0, "", "", " "),
    Level(1, "#b08500", "", "."),
    Level(2, "#1a1a1a", "#d9b340", ":"),
    Level(4, "#1a1a1a", "#f0862b", "+"),
    Level(8, "#ffffff", "#d7261e", "#", bold=True),
    Level(16, "#ffffff", "#9c0f7d", "@", bold=True),
)
UNKNOWN = "dim"  # of what was read and not predicted


def level_of(bits: float | None) -> Level | None:
    """The level of a surprise; None for what was not predicted.

    >>> level_of(3.5).least
    2
    """
    if bits is None or math.isnan(bits):
        return None
    return next(level for level in reversed(LEVELS) if bits >= level.least or level is LEVELS[0])


def heat(pieces: Sequence[str], bits: Iterable[float | None], width: int = 80, *, plain: bool = False) -> Text:
    """The text in lines of at most so many columns, each token on the ground of its surprise.

    pieces   the text of each token
    bits     what each cost; None or nan for one that was read and not predicted, as the first is
    plain    no colours: marks below each line instead, as `legend` explains them

    >>> print(heat(["un", "likely", "\\n", "光"], [None, 9.5, 0.1, 4.2], plain=True).plain)
    unlikely⏎
      ######
    光
    ++
    """
    levels = _levels(pieces, bits)
    found: Text = of_rich("text", "Text")(no_wrap=True)
    for index, line in enumerate(lines(pieces, width)):
        found.append("\n" if index else "")
        for _, group in itertools.groupby(line, key=lambda glyph: levels[glyph.piece]):
            own = list(group)
            level = levels[own[0].piece]
            text = "".join(glyph.text for glyph in own)
            found.append(text, None if plain else UNKNOWN if level is None else level.style or None)
        marks = _marks(line, levels) if plain else ""
        found.append(f"\n{marks}" if marks else "")
    return found


def _marks(line: list[Glyph], levels: list[Level | None]) -> str:
    marks = [(levels[glyph.piece] or LEVELS[0]).mark * glyph.width for glyph in line]
    return "".join(marks).rstrip()


def legend(*, plain: bool = False) -> Text:
    """What the colours mean, or the marks.

    >>> print(legend(plain=True).plain)
    bits: 0-1 none, 1-2 ., 2-4 :, 4-8 +, 8-16 #, 16 or more @
    """
    text = of_rich("text", "Text")
    if plain:
        told = [f"{span} {level.mark.strip() or 'none'}" for level, span in zip(LEVELS, _spans(), strict=True)]
        return text("bits: " + ", ".join(told))
    found: Text = text("bits ")
    for level, span in zip(LEVELS, _spans(), strict=True):
        found.append(f" {span} ", level.style or None)
    return found


def is_plain(console: Console) -> bool:
    """Whether a console shows no colours: NO_COLOR is set, or it writes to a file."""
    return console.no_color or console.color_system is None


def heat_html(pieces: Sequence[str], bits: Iterable[float | None]) -> str:
    """The same as a part of a page, with the bits of each token to be read under the pointer; lines wrap by themselves.

    >>> print(heat_html(["<", "光"], [None, 4.25]).splitlines()[-2])
    <pre><span class="unknown">&lt;</span><span class="l3" title="4.25 bits">光</span></pre>
    """
    numbers = _numbers(pieces, bits)
    body = "".join(_span(piece, number) for piece, number in zip(pieces, numbers, strict=True))
    key = " ".join(f'<span class="l{index}">&nbsp;{span}&nbsp;</span>' for index, span in enumerate(_spans()))
    return f'<div class="leporello-heat">\n{_css()}\n<p>bits {key}</p>\n<pre>{body}</pre>\n</div>\n'


def _span(piece: str, bits: float | None) -> str:
    text = "".join(html.escape(shown(character)) + ("\n" if character in BREAKS else "") for character in piece)
    level = level_of(bits)
    if level is None:
        return f'<span class="unknown">{text}</span>'
    return f'<span class="l{LEVELS.index(level)}" title="{bits:.2f} bits">{text}</span>'


def _css() -> str:
    rules = [
        ".leporello-heat pre { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.6; font-size: 15px; }",
        ".leporello-heat p { font: 13px sans-serif; }",
        ".leporello-heat .unknown { opacity: 0.55; }",
    ]
    for index, level in enumerate(LEVELS):
        told = [f"color: {level.ink};"] if level.ink else []
        told += [f"background: {level.ground};"] if level.ground else []
        told += ["font-weight: bold;"] if level.bold else []
        rules += [f".leporello-heat .l{index} {{ {' '.join(told)} }}"] if told else []
    return "<style>\n" + "\n".join(rules) + "\n</style>"


def _spans() -> list[str]:
    """The levels in words: 0-1, 1-2, …, 16 or more."""
    told = [f"{one.least:g}-{other.least:g}" for one, other in itertools.pairwise(LEVELS)]
    return [*told, f"{LEVELS[-1].least:g} or more"]


def _levels(pieces: Sequence[str], bits: Iterable[float | None]) -> list[Level | None]:
    return [level_of(number) for number in _numbers(pieces, bits)]


def _numbers(pieces: Sequence[str], bits: Any) -> list[float | None]:
    numbers = bits.tolist() if hasattr(bits, "tolist") else list(bits)
    if len(numbers) != len(pieces):
        raise ArgumentError(
            "there is not one surprise for each piece.",
            came=f"{len(pieces)} pieces and {len(numbers)} surprises",
            tries="None for the first piece, which is read and not predicted",
        )
    return numbers


# ---- (language.glyphs) Text as it can be shown piece by piece: what has no shape gets one, and lines are broken by columns.
#
# Chinese characters take two columns. Knows characters and columns; knows nothing of colours.

SHAPES = {"\n": "⏎", "\t": "→", "\r": "␍", "\x7f": "␡", "\u2028": "⏎", "\u2029": "⏎"}
BREAKS = {"\n", "\u2028", "\u2029"}
# Signs that no line begins with.
CLOSING = set("，。、；：？！）》〉」』】〕”’…·—,.;:?!)]}%")


@dataclass(frozen=True)
class Glyph:
    """One character as it is shown.

    text     it, with what combines with it
    width    in columns
    piece    the index of the piece it belongs to
    ends     whether the line ends behind it
    """

    text: str
    width: int
    piece: int
    ends: bool = False


def shown(character: str) -> str:
    """A character in a form that can be seen: ⏎ for a newline, → for a tab, <200D> for what has no shape at all.

    >>> [shown(character) for character in ("a", "\\n", "\\x00", "\\u200d")]
    ['a', '⏎', '␀', '<200D>']
    """
    if character in SHAPES:
        return SHAPES[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return f"<{ord(character):04X}>"
    return character


def glyphs(pieces: Iterable[str]) -> Iterator[Glyph]:
    """The characters of all pieces; one that combines with what stands before it gets a circle to stand on."""
    columns: Callable[[str], int] = of_rich("cells", "cell_len")
    for index, piece in enumerate(pieces):
        waiting = ""
        for character in piece:
            if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
                waiting = (waiting or "◌") + character
                continue
            if waiting:
                yield Glyph(waiting, columns(waiting), index)
            waiting = shown(character)
            if character in BREAKS:
                yield Glyph(waiting, columns(waiting), index, ends=True)
                waiting = ""
        if waiting:
            yield Glyph(waiting, columns(waiting), index)


def lines(pieces: Iterable[str], width: int) -> list[list[Glyph]]:
    """The glyphs in lines of at most so many columns, broken behind spaces and beside wide characters.

    >>> ["".join(glyph.text for glyph in line) for line in lines(["床前", "明月", "光"], 6)]
    ['床前明', '月光']
    """
    if not isinstance(width, int) or isinstance(width, bool) or width < 2:
        raise ArgumentError("the argument 'width' is no width.", came=repr(width), expected="2 columns or more")
    found: list[list[Glyph]] = [[]]
    for glyph in glyphs(pieces):
        line = found[-1]
        while line and sum(other.width for other in line) + glyph.width > width:
            place = _place_to_break(line, glyph)
            found[-1], line = line[:place], line[place:]
            found.append(line)
        line.append(glyph)
        if glyph.ends:
            found.append([])
    return [line for line in found if line]


def _place_to_break(line: list[Glyph], following: Glyph) -> int:
    """How much of a full line stays: up to the last place where it may be broken, else all of it."""
    row = [*line, following]
    for place in range(len(line), 0, -1):
        before, behind = row[place - 1], row[place]
        if behind.text in CLOSING or behind.text == " ":
            continue
        if before.text == " " or before.width == 2 or behind.width == 2:
            return place
    return len(line)


def of_rich(module: str, name: str) -> Any:
    """A part of the package rich, which only terminals need."""
    try:
        return getattr(importlib.import_module(f"rich.{module}"), name)
    except ImportError as error:
        raise LeporelloError("coloured text needs the package rich.", tries="pip install 'leporello[cli]'") from error
