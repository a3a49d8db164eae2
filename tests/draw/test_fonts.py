"""Letters of a PNG: drawn with any font that has them, named in a warning where none has. Fonts are made here."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from leporello.draw.fonts import chinese_family, drawn_letters, missing_letters_warning, set_in_chinese
from leporello.draw.png import png

resvg_py = pytest.importorskip("resvg_py", reason="only PNG needs it")
builder = pytest.importorskip("fontTools.fontBuilder", reason="makes the fonts")
pens = pytest.importorskip("fontTools.pens.ttGlyphPen")

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40">{}</svg>'
TEXT = '<text x="5" y="30" font-size="20" font-family="serif">{}</text>'


def make_font(file: Path, family: str, letters: str) -> str:
    """A font in which each letter is a bar of another height."""
    names = [".notdef", *(f"u{ord(letter):X}" for letter in letters)]
    glyphs = {}
    for index, name in enumerate(names):
        pen = pens.TTGlyphPen(None)
        top = 150 * (index + 1)
        pen.moveTo((100, 0))
        for point in ((100, top), (900, top), (900, 0)):
            pen.lineTo(point)
        pen.closePath()
        glyphs[name] = pen.glyph()
    font = builder.FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder(names)
    font.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    font.setupGlyf(glyphs)
    font.setupHorizontalMetrics(dict.fromkeys(names, (1000, 100)))
    font.setupHorizontalHeader(ascent=900, descent=-100)
    font.setupNameTable({"familyName": family, "styleName": "Regular", "psName": family.replace(" ", "")})
    font.setupOS2(sTypoAscender=900, usWinAscent=900, usWinDescent=100)
    font.setupPost()
    file.parent.mkdir(exist_ok=True)
    font.save(file)
    return str(file)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Callable[..., bytes]]:
    """Gives a machine with these fonts alone, by family, and without fontconfig."""
    render = resvg_py.svg_to_bytes
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_DATA_DIRS", "")

    def install(**families: str) -> Callable[..., bytes]:
        made = [
            make_font(tmp_path / "system" / f"{name}.ttf", name.replace("_", " "), letters)
            for name, letters in families.items()
        ]

        def bare(*, font_files: tuple[str, ...] | list[str] = (), **options: object) -> bytes:
            return render(skip_system_fonts=True, font_files=[*made, *font_files], **options)

        monkeypatch.setattr(resvg_py, "svg_to_bytes", bare)
        return bare

    return install


def test_letters_without_a_font_are_named(install: Callable[..., object]) -> None:
    install(DejaVu_Serif="M隐")
    with pytest.warns(UserWarning, match="no font was found for 藏") as told:
        png(SVG.format(TEXT.format("M隐藏M藏")))
    (warning,) = told
    assert "隐" not in str(warning.message)
    assert "fonts-noto-cjk" in str(warning.message)
    assert ".svg" in str(warning.message)


def test_letters_with_a_font_are_not(install: Callable[..., object]) -> None:
    install(DejaVu_Serif="M", Any_Font="隐藏")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png(SVG.format(TEXT.format("隐"))) != png(SVG.format(TEXT.format("藏")))
        png(SVG.format("<title>中</title>" + TEXT.format("M \u00a0\u200b")))  # not drawn, or blank


def test_a_font_in_a_folder_of_the_user_is_found(install: Callable[..., object], tmp_path: Path) -> None:
    install(DejaVu_Serif="M")
    with pytest.warns(UserWarning, match="藏"):
        box = png(SVG.format(TEXT.format("藏")))
    (tmp_path / "data").mkdir()
    make_font(tmp_path / "data" / "fonts" / "new.ttf", "New", "中藏")
    assert png(SVG.format(TEXT.format("藏"))) != box  # a warning would be an error
    with pytest.warns(UserWarning, match="隐") as told:
        png(SVG.format(TEXT.format("藏隐")))
    assert "藏" not in str(told[0].message)


def test_chinese_letters_are_set_in_a_chinese_font(install: Callable[..., Callable[..., bytes]]) -> None:
    render = install(DejaVu_Serif="M", A_Font="中直", WenQuanYi_Micro_Hei="M直中")
    assert chinese_family(render) == "WenQuanYi Micro Hei"
    svg = SVG.format("<title>直</title>" + TEXT.format("M中直M"))
    spanned = "M<tspan style=\"font-family: 'WenQuanYi Micro Hei'\">中直</tspan>M"
    assert set_in_chinese(render, svg) == SVG.format("<title>直</title>" + TEXT.format(spanned))
    assert png(svg) == render(
        svg_string=SVG.format(TEXT.format(spanned)), background="white", zoom=2, serif_family="DejaVu Serif"
    )


@pytest.mark.parametrize("text", ["直す", "M", "직直"])
def test_other_letters_are_left_alone(install: Callable[..., Callable[..., bytes]], text: str) -> None:
    render = install(DejaVu_Serif="M", SimSun="中")
    assert set_in_chinese(render, SVG.format(TEXT.format(text))) == SVG.format(TEXT.format(text))


def test_without_a_chinese_font_nothing_is_set_in_one(install: Callable[..., Callable[..., bytes]]) -> None:
    render = install(DejaVu_Serif="M直")
    assert set_in_chinese(render, SVG.format(TEXT.format("直"))) == SVG.format(TEXT.format("直"))


def test_the_letters_of_a_drawing() -> None:
    inner = "<style>/* ü */</style><!-- ö --><g><title>ä</title>" + TEXT.format("é<tspan>&#945;e\u0301</tspan>é&lt;隐")
    assert drawn_letters(SVG.format(inner + "</g>ß")) == ["é", "α", "隐"]


def test_many_missing_letters_are_counted() -> None:
    told = missing_letters_warning([chr(0x13000 + number) for number in range(30)])
    assert "and 18 more" in told
    assert "cjk" not in told
