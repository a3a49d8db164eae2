"""Text coloured by surprise, for terminals and web pages: the more bits a token cost, the redder it is.

Levels are the same for every text, so that two texts can be compared. The colours are legible on dark and light
terminals; without colours, marks stand below each line. Invisible characters are shown by visible ones, and Chinese
characters take two columns.
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
class SurpriseLevel:
    """A range of surprises and how it looks.

    least    bits from which it begins
    ink      colour of the letters; "" for the default
    ground   colour behind them; "" for the default
    mark     below them if there are no colours
    """

    least: float
    ink: str
    ground: str
    mark: str
    bold: bool = False

    @property
    def style(self) -> str:
        """The style in the notation of rich."""
        ground = f" on {self.ground}" if self.ground else ""
        return f"{'bold ' if self.bold else ''}{self.ink}{ground}"


# All of a medium brightness, so that none stands out more than the next on dark or light ground.
LEVELS = (
    SurpriseLevel(0, "", "", " "),
    SurpriseLevel(1, "#b08500", "", "."),
    SurpriseLevel(2, "#1a1a1a", "#d9b340", ":"),
    SurpriseLevel(4, "#1a1a1a", "#f0862b", "+"),
    SurpriseLevel(8, "#ffffff", "#d7261e", "#", bold=True),
    SurpriseLevel(16, "#ffffff", "#9c0f7d", "@", bold=True),
)
NOT_PREDICTED_STYLE = "dim"
VISIBLE_FORMS = {"\n": "⏎", "\t": "→", "\r": "␍", "\x7f": "␡", "\u2028": "⏎", "\u2029": "⏎"}
LINE_BREAKS = {"\n", "\u2028", "\u2029"}
NOT_AT_LINE_START = set("，。、；：？！）》〉」』】〕”’…·—,.;:?!)]}%")


def level_of(bits: float | None) -> SurpriseLevel | None:
    """The level of a surprise; None for a token that was not predicted.

    >>> level_of(3.5).least
    2
    """
    if bits is None or math.isnan(bits):
        return None
    return next(level for level in reversed(LEVELS) if bits >= level.least or level is LEVELS[0])


def coloured_text(pieces: Sequence[str], bits: Iterable[float | None], width: int = 80, *, plain: bool = False) -> Text:
    """The text in lines of at most `width` columns, each token in the colour of its surprise.

    pieces   the text of each token
    bits     the surprise of each; None or NaN for one that was not predicted, such as the first
    plain    marks below each line instead of colours; `legend` explains them

    >>> print(coloured_text(["un", "likely", "\\n", "光"], [None, 9.5, 0.1, 4.2], plain=True).plain)
    unlikely⏎
      ######
    光
    ++
    """
    levels = _levels(pieces, bits)
    text: Text = _import_rich("text", "Text")(no_wrap=True)
    for index, line in enumerate(lines(pieces, width)):
        text.append("\n" if index else "")
        for level, group in itertools.groupby(line, key=lambda glyph: levels[glyph.piece]):
            letters = "".join(glyph.text for glyph in group)
            text.append(letters, None if plain else NOT_PREDICTED_STYLE if level is None else level.style or None)
        marks = _marks(line, levels) if plain else ""
        text.append(f"\n{marks}" if marks else "")
    return text


def _marks(line: list[Glyph], levels: list[SurpriseLevel | None]) -> str:
    """The marks below a line."""
    marks = [(levels[glyph.piece] or LEVELS[0]).mark * glyph.width for glyph in line]
    return "".join(marks).rstrip()


def legend(*, plain: bool = False) -> Text:
    """What the colours or the marks mean.

    >>> print(legend(plain=True).plain)
    bits: 0-1 none, 1-2 ., 2-4 :, 4-8 +, 8-16 #, 16 or more @
    """
    text_class = _import_rich("text", "Text")
    if plain:
        entries = [f"{name} {level.mark.strip() or 'none'}" for level, name in zip(LEVELS, _range_names(), strict=True)]
        return text_class("bits: " + ", ".join(entries))
    text: Text = text_class("bits ")
    for level, name in zip(LEVELS, _range_names(), strict=True):
        text.append(f" {name} ", level.style or None)
    return text


def is_plain(console: Console) -> bool:
    """Whether a console shows no colours: NO_COLOR is set, or it writes to a file."""
    return console.no_color or console.color_system is None


def coloured_html(pieces: Sequence[str], bits: Iterable[float | None]) -> str:
    """The text as a <div> for an HTML page, with style and legend; a tooltip shows the bits of each token.

    pieces, bits   as in `coloured_text`

    >>> print(coloured_html(["<", "光"], [None, 4.25]).splitlines()[-2])
    <pre><span class="unknown">&lt;</span><span class="l3" title="4.25 bits">光</span></pre>
    """
    numbers = _numbers(pieces, bits)
    body = "".join(_span(piece, number) for piece, number in zip(pieces, numbers, strict=True))
    key = " ".join(f'<span class="l{index}">&nbsp;{name}&nbsp;</span>' for index, name in enumerate(_range_names()))
    return f'<div class="leporello-heat">\n{_css()}\n<p>bits {key}</p>\n<pre>{body}</pre>\n</div>\n'


def _span(piece: str, bits: float | None) -> str:
    """One token as HTML."""
    text = "".join(
        html.escape(visible_character(character)) + ("\n" if character in LINE_BREAKS else "") for character in piece
    )
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
        properties = [f"color: {level.ink};"] if level.ink else []
        properties += [f"background: {level.ground};"] if level.ground else []
        properties += ["font-weight: bold;"] if level.bold else []
        rules += [f".leporello-heat .l{index} {{ {' '.join(properties)} }}"] if properties else []
    return "<style>\n" + "\n".join(rules) + "\n</style>"


def _range_names() -> list[str]:
    """The ranges of the levels: 0-1, 1-2, …, 16 or more."""
    bounded = [f"{level.least:g}-{following.least:g}" for level, following in itertools.pairwise(LEVELS)]
    return [*bounded, f"{LEVELS[-1].least:g} or more"]


def _levels(pieces: Sequence[str], bits: Iterable[float | None]) -> list[SurpriseLevel | None]:
    return [level_of(number) for number in _numbers(pieces, bits)]


def _numbers(pieces: Sequence[str], bits: Any) -> list[float | None]:
    """The surprises, of an iterable or a tensor, as a list; another number of them than of pieces is refused."""
    numbers = bits.tolist() if hasattr(bits, "tolist") else list(bits)
    if len(numbers) != len(pieces):
        raise ArgumentError(
            "there is not one surprise for each piece.",
            came=f"{len(pieces)} pieces and {len(numbers)} surprises",
            tries="None for the first piece, which is read and not predicted",
        )
    return numbers


@dataclass(frozen=True)
class Glyph:
    """One visible character.

    text     the character, with accents that combine with it
    width    in columns
    piece    the index of the piece it belongs to
    ends     whether the line ends after it
    """

    text: str
    width: int
    piece: int
    ends: bool = False


def visible_character(character: str) -> str:
    """A character in a visible form: ⏎ for a newline, → for a tab, <200D> for one without any shape.

    >>> [visible_character(character) for character in ("a", "\\n", "\\x00", "\\u200d")]
    ['a', '⏎', '␀', '<200D>']
    """
    if character in VISIBLE_FORMS:
        return VISIBLE_FORMS[character]
    if character < " ":
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return f"<{ord(character):04X}>"
    return character


def glyphs(pieces: Iterable[str]) -> Iterator[Glyph]:
    """The characters of all pieces. An accent without a letter before it gets a circle."""
    columns: Callable[[str], int] = _import_rich("cells", "cell_len")
    for index, piece in enumerate(pieces):
        waiting = ""
        for character in piece:
            if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
                waiting = (waiting or "◌") + character
                continue
            if waiting:
                yield Glyph(waiting, columns(waiting), index)
            waiting = visible_character(character)
            if character in LINE_BREAKS:
                yield Glyph(waiting, columns(waiting), index, ends=True)
                waiting = ""
        if waiting:
            yield Glyph(waiting, columns(waiting), index)


def lines(pieces: Iterable[str], width: int) -> list[list[Glyph]]:
    """The glyphs in lines of at most `width` columns, broken after spaces and next to wide characters.

    >>> ["".join(glyph.text for glyph in line) for line in lines(["床前", "明月", "光"], 6)]
    ['床前明', '月光']
    """
    if not isinstance(width, int) or isinstance(width, bool) or width < 2:
        raise ArgumentError("the argument 'width' is no width.", came=repr(width), expected="2 columns or more")
    broken: list[list[Glyph]] = [[]]
    for glyph in glyphs(pieces):
        line = broken[-1]
        while line and sum(other.width for other in line) + glyph.width > width:
            count = _length_before_break(line, glyph)
            broken[-1], line = line[:count], line[count:]
            broken.append(line)
        line.append(glyph)
        if glyph.ends:
            broken.append([])
    return [line for line in broken if line]


def _length_before_break(line: list[Glyph], following: Glyph) -> int:
    """The number of glyphs of a full line that stay: up to the last possible break, or all."""
    row = [*line, following]
    for count in range(len(line), 0, -1):
        before, after = row[count - 1], row[count]
        if after.text in NOT_AT_LINE_START or after.text == " ":
            continue
        if before.text == " " or before.width == 2 or after.width == 2:
            return count
    return len(line)


def _import_rich(module: str, name: str) -> Any:
    """A name in a module of the optional package rich; where that is missing, an error that says how to install it."""
    try:
        return getattr(importlib.import_module(f"rich.{module}"), name)
    except ImportError as error:
        raise LeporelloError("coloured text needs the package rich.", tries="pip install 'leporello[cli]'") from error
