"""The page about a run."""

from __future__ import annotations

import pytest

from leporello.language.report import markdown_report as report
from leporello.language.report.markdown_report import (
    Flow,
    changed_options,
    fenced,
    spanned,
    two_columns,
    visible,
    write_report,
)
from leporello.language.report.run_summary import summary_of
from leporello.language.run.folder import Run
from tests.language.tiny import CONFIG, add_line, tiny_run  # noqa: F401


def page(run: Run, flow: Flow | None = None) -> str:
    write_report(run, flow)
    return run.report_file.read_text(encoding="utf-8")


def test_a_report_tells_what_was_trained_and_how_it_ended(tiny: Run) -> None:
    text, found = page(tiny), summary_of(tiny)
    assert text.startswith("# `shells.txt`: `gru 8`\n")
    assert "Ended: 2 epochs are done." in text
    assert "1 epochs" not in text
    assert found.best is not None
    assert f"**{found.best['perplexity']:.3f}**" in text
    assert f"| parameters | {found.parameters:,} |" in text
    assert f"| digest | `{found.corpus['digest']}` |" in text
    assert "| `window` | `11` |" in text
    assert "`optimiser`" not in text
    assert f"leporello generate {tiny.path}" in text
    assert "leporello resume" not in text


def test_the_network_stands_in_the_table_beside_the_n_grams(tiny: Run) -> None:
    lines = page(tiny).splitlines()
    names = [line.strip("| ").split(" | ")[0].strip("*") for line in lines if line.startswith("| ") and "." in line]
    assert [name for name in names if "gram" in name or name in ("uniform", "gru 8")] == [
        "uniform",
        "1-gram",
        "2-gram",
        "3-gram",
        "gru 8",
    ]
    assert any(line.startswith("The network predicts better than the uniform model, and worse") for line in lines)


def test_the_curve_lies_beside_the_page_and_nothing_half_written(tiny: Run) -> None:
    assert "(curve.svg)" in page(tiny)
    assert tiny.curve_file.read_bytes().startswith(b"<?xml")
    assert not list(tiny.path.glob(".*"))


def test_without_matplotlib_the_page_says_what_the_curve_needs(tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "matplotlib_missing", lambda: True)
    text = page(tiny)
    assert "curve.svg needs `pip install 'leporello[plots]'`." in text
    assert "(curve.svg)" not in text
    assert not tiny.curve_file.exists()


def test_the_last_samples_are_shown_whatever_is_in_them(tiny: Run) -> None:
    for epoch, text in enumerate(["first", "second", "```\n# no heading", "红楼梦 <b>\x1b[31m"]):
        add_line(tiny, kind="sample", update=epoch, epoch=epoch, text=text)
    found = page(tiny)
    assert "first" not in found
    assert "````text\n```\n# no heading\n````" in found
    assert "```text\n红楼梦 <b>␛[31m\n```" in found


def test_what_instruments_found_has_a_section_of_its_own(tiny: Run) -> None:
    assert "Where gradients go" not in page(tiny)
    text = page(tiny, Flow("far", "They go far.", b"<svg/>"))
    assert "## Where gradients go\n\nThey go far.\n\n```text\nfar\n```\n\n![where gradients go](flow.svg)" in text
    assert (tiny.path / "flow.svg").read_bytes() == b"<svg/>"


def test_a_run_that_was_broken_off_at_once_has_a_page_that_says_how_to_go_on(tiny: Run) -> None:
    for file in (tiny.metrics_file, tiny.ngrams_file, tiny.last_file, tiny.best_file):
        file.unlink()
    text = page(tiny)
    assert "Stopped before its end." in text
    assert "Nothing was measured yet." in text
    assert "There was no validation." in text
    assert f"leporello resume {tiny.path}" in text
    assert not tiny.curve_file.exists()


def test_only_keys_that_are_not_at_their_defaults_differ() -> None:
    assert changed_options(CONFIG)["window"] == 11
    assert "optimiser" not in changed_options(CONFIG)


@pytest.mark.parametrize("text", ["", "plain", "```", "a ```` b\n``````", "~~~\n---"])
def test_no_line_of_a_fenced_text_can_end_the_fence(text: str) -> None:
    opening, *inside, closing = fenced(text).split("\n")
    assert opening == f"{closing}text"
    assert all(closing not in line for line in inside)
    assert "\n".join(inside) == text


def test_control_characters_can_be_seen_and_halves_of_characters_can_be_written() -> None:
    assert visible("a\x1b[31m\x00\r\nb\tc\x7f\ud800") == "a␛[31m␀\nb\tc␡?"


def test_a_span_holds_backticks_and_is_one_line() -> None:
    assert spanned("a`b") == "``a`b``"
    assert spanned("`x`") == "`` `x` ``"
    assert spanned("two\nlines") == "`two␊lines`"


def test_a_cell_of_a_table_ends_where_it_should() -> None:
    assert two_columns({"text": spanned("a|b")}).splitlines()[-1] == r"| text | `a\|b` |"
