"""Fonts for PNG: one for every generic family of CSS, one for Chinese letters, and the letters that no font has.

resvg knows the system's fonts, and takes a letter that the font of a text lacks from any other. What it can draw is
found by drawing: no font file is read here. Where a letter is missing, a font is looked for by fontconfig and in
folders that resvg does not search.
"""

from __future__ import annotations

import functools
import html
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from leporello.errors import LeporelloError

Render = Callable[..., bytes]  # resvg_py.svg_to_bytes

# resvg has one font for each generic family of CSS, and draws no text where that font is missing.
FONT_FAMILIES = {
    "serif": ("DejaVu Serif", "Liberation Serif", "Noto Serif", "FreeSerif", "Times New Roman", "Times", "Georgia"),
    "sans-serif": (
        "DejaVu Sans",
        "Liberation Sans",
        "Noto Sans",
        "FreeSans",
        "Arial",
        "Helvetica",
        "Segoe UI",
        "Ubuntu",
        "Cantarell",
    ),
    "monospace": ("DejaVu Sans Mono", "Liberation Mono", "Noto Sans Mono", "FreeMono", "Courier New", "Menlo"),
}
# Of the fonts that have Chinese letters, those with the shapes that Chinese readers know: resvg takes any, often the
# Japanese one. Serifs come first, as in the names around them.
CHINESE_FAMILIES = (
    "Noto Serif CJK SC",
    "Noto Serif SC",
    "Source Han Serif SC",
    "Songti SC",
    "SimSun",
    "AR PL UMing CN",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Heiti SC",
    "Microsoft YaHei",
    "Droid Sans Fallback",
)
HAN = re.compile("[\u2e80-\u2fdf\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
NOT_CHINESE = re.compile("[\u3040-\u30ff\u31f0-\u31ff\uac00-\ud7af]")  # kana and hangul

NO_LETTER = "\U0008ffff"  # a noncharacter: resvg draws it as any letter that is in no font
MARKUP = re.compile(r"(<!--.*?-->|<!\[CDATA\[.*?\]\]>|<[^>]*>)", re.DOTALL)
TEST_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">{}</svg>'
MOST_QUERIES = 8  # of fontconfig: a font with one letter of a script has the others too
MOST_NAMED = 12  # letters in a warning


@functools.cache
def generic_families(render: Render) -> dict[str, str]:
    """Arguments for resvg: for each generic family an installed font, of another family where none is installed."""
    installed = {
        kind: next((name for name in (kind, *names) if _draws(render, name)), None)
        for kind, names in FONT_FAMILIES.items()
    }
    substitute = next(filter(None, installed.values()), None)
    if substitute is None:
        raise LeporelloError(
            "no font was found, so the picture would have no letters.",
            expected="one of " + ", ".join(names[0] for names in FONT_FAMILIES.values()) + " or a font like them",
            tries="install one, as the package fonts-dejavu; or write a .svg, which is drawn with the reader's fonts",
        )
    return {f"{kind.replace('-', '_')}_family": name or substitute for kind, name in installed.items() if name != kind}


def fallback_fonts(render: Render, letters: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
    """Font files that resvg needs beside the system's to draw these letters, and the letters that are missing still."""
    missing = [letter for letter in letters if not _has_letter(render, letter)]
    files = _font_files("".join(missing)) if missing else ()
    found = {letter for letter in missing if files and _has_letter(render, letter, files)}
    return files if found else (), [letter for letter in missing if letter not in found]


def missing_letters_warning(letters: list[str]) -> str:
    """What to say of letters that no font has."""
    named = ", ".join(f"{letter} (U+{ord(letter):04X})" for letter in letters[:MOST_NAMED])
    rest = f" and {len(letters) - MOST_NAMED} more" if len(letters) > MOST_NAMED else ""
    package = "Noto Sans CJK (the package fonts-noto-cjk)" if HAN.search("".join(letters)) else "one of the Noto fonts"
    return (
        f"no font was found for {named}{rest}: the PNG shows a box or nothing in their place. "
        f"Install a font that has them, such as {package}; or write a .svg, which is drawn with the reader's fonts"
    )


def drawn_letters(svg: str) -> list[str]:
    """The letters beyond ASCII that an SVG draws, each once, in order; no blanks, marks above letters or controls."""
    drawn = "".join(html.unescape(text) for text, is_drawn in _texts(svg) if is_drawn)
    return [letter for letter in dict.fromkeys(drawn) if ord(letter) > 127 and _is_visible(letter)]


def set_in_chinese(render: Render, svg: str, files: tuple[str, ...] = ()) -> str:
    """The SVG with Chinese letters in a Chinese font, if there is one; unchanged if it has kana or hangul too."""
    drawn = "".join(text for text, is_drawn in _texts(svg) if is_drawn)
    if not HAN.search(drawn) or NOT_CHINESE.search(drawn):
        return svg
    family = chinese_family(render, files)
    if family is None:
        return svg
    spanned = rf"""<tspan style="font-family: '{family}'">\g<0></tspan>"""
    return "".join(HAN.sub(spanned, text) if is_drawn else text for text, is_drawn in _texts(svg))


@functools.cache
def chinese_family(render: Render, files: tuple[str, ...] = ()) -> str | None:
    """The first installed font of `CHINESE_FAMILIES`."""
    return next((name for name in CHINESE_FAMILIES if _draws(render, name, "中", files)), None)


def _texts(svg: str) -> Iterator[tuple[str, bool]]:
    """An SVG in pieces, tags and texts, each with whether it is a text that is drawn; titles are not."""
    open_tags: list[str] = []
    for piece in MARKUP.split(svg):
        tag = re.match(r"<(/?)([\w:.-]+)", piece)
        if tag is None:
            is_drawn = "text" in open_tags and not {"title", "desc", "style"} & set(open_tags)
            yield piece, is_drawn and not piece.startswith("<")
            continue
        if tag[1]:
            del open_tags[-1:]
        elif not piece.endswith("/>"):
            open_tags.append(tag[2])
        yield piece, False


def _is_visible(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category == "Co" or category[0] not in "CMZ"


@functools.cache
def _has_letter(render: Render, letter: str, files: tuple[str, ...] = ()) -> bool:
    """Whether any font has this letter: it is drawn, and not as a letter that no font has."""
    options = {**generic_families(render), **_file_options(files)}
    images = [_image(render, one, "serif", options) for one in (letter, "", NO_LETTER)]
    return images[0] not in images[1:]


def _draws(render: Render, family: str, letter: str = "M", files: tuple[str, ...] = ()) -> bool:
    """Whether a letter of this family is drawn at all."""
    options = _file_options(files)
    return _image(render, letter, family, options) != _image(render, "", family, options)


def _image(render: Render, letter: str, family: str, options: Mapping[str, object]) -> bytes:
    text = f'<text x="5" y="35" font-size="30" font-family="{family}">{letter}</text>'
    return render(svg_string=TEST_SVG.format(text if letter else ""), **options)


def _file_options(files: tuple[str, ...]) -> dict[str, object]:
    return {"font_files": list(files)} if files else {}


def _font_files(letters: str) -> tuple[str, ...]:
    """Files of fonts that may have these letters: the best by fontconfig, and all in folders that resvg leaves out."""
    found = [_matched_by_fontconfig(letter) for letter in letters[:MOST_QUERIES]]
    for folder in font_folders():
        found += sorted(str(file) for file in folder.rglob("*") if file.suffix.lower() in (".ttf", ".otf", ".ttc"))
    return tuple(dict.fromkeys(filter(None, found)))


def _matched_by_fontconfig(letter: str) -> str:
    """The file of the font that fontconfig would draw a letter with; empty without fontconfig."""
    pattern = f":charset={ord(letter):x}" + (":lang=zh-cn" if HAN.match(letter) else "")
    try:
        command = ["fc-match", "--format=%{file}", pattern]
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def font_folders() -> list[Path]:
    """Folders of fonts that resvg may not search: of the environment that Python runs in, and of the user."""
    data = [os.environ.get("XDG_DATA_HOME", "~/.local/share"), *os.environ.get("XDG_DATA_DIRS", "").split(os.pathsep)]
    folders = [Path(sys.prefix, "fonts"), Path(sys.prefix, "share", "fonts")]
    folders += [Path(folder).expanduser() / "fonts" for folder in data if folder]
    folders += (
        [Path(os.environ["LOCALAPPDATA"], "Microsoft", "Windows", "Fonts")] if "LOCALAPPDATA" in os.environ else []
    )
    folders += sorted(Path("/System/Library/AssetsV2").glob("com_apple_MobileAsset_Font*"))  # macOS: on demand
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
