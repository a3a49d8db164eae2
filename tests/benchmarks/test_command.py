"""`python -m benchmarks`: tables with what is promised, then one JSON line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import machine, progress, report, turns
from benchmarks.cases import Case
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.suites import SUITES, stepwise
from benchmarks.turns import Ratio, Settings
from leporello.errors import EngineRefusal

SMALL = tuple(Case(cell, Size(3, 2, 1, 5)) for cell in ("Elman", "Leaky"))
DOCS = Path(__file__).parents[2] / "docs"


def made_up(case: Case, settings: Settings) -> Measurement:
    if case.cell == "Leaky":
        raise EngineRefusal("this cell is refused.", tries="another")
    return Measurement(case, {"milliseconds": {"ours": 2.0}}, {"theirs over ours": Ratio(1.5, 1.0, 2.0)})


MADE_UP = Suite(
    name="made-up",
    says="a suite of the tests",
    cases=SMALL,
    measure=made_up,
    promises=(Promise("Elman", "ratio", "theirs over ours", "smallest", least=1.0, of=lambda c: c.cell == "Elman"),),
    notes=("something is left out",),
)


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAUSE_SECONDS", 0)
    small = Suite("stepwise", "small", SMALL, stepwise.measure, stepwise.SUITE.promises)
    monkeypatch.setattr(command, "SUITES", (small, MADE_UP))


def test_the_last_line_is_json_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--suite", "stepwise", "--rounds", "2"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert list(record) == ["settings", "machine", "suites"]
    assert record["settings"]["rounds"] == 2
    assert record["machine"]["processor"]
    cases, summaries = record["suites"]["stepwise"]["cases"], record["suites"]["stepwise"]["summaries"]
    assert [case["cell"] for case in cases] == ["Elman", "Leaky"]
    assert {key: cases[0][key] for key in ("length", "batch", "inputs", "hidden", "rounds")} == {
        "length": 3,
        "batch": 2,
        "inputs": 1,
        "hidden": 5,
        "rounds": 2,
    }
    assert set(cases[0]["figures"]["milliseconds"]) == {"eager", "stepwise"}
    assert set(cases[0]["ratios"]["eager over stepwise"]) == {"median", "low", "high"}
    assert summaries[0]["promised"] == {"at_least": 1.4}
    assert summaries[0]["met"] is (summaries[0]["found"] >= 1.4)
    assert any("at least 1.4" in line for line in table)


def test_a_case_that_is_refused_is_told_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--suite", "made-up"]) == 1
    *table, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)["suites"]["made-up"]
    assert "failed" not in told["cases"][0]
    assert "this cell is refused" in told["cases"][1]["failed"]
    assert told["summaries"][0]["met"] is True
    assert told["notes"] == ["something is left out"]
    for words in ("not measured: Leaky 3x2x1x5", "made-up: something is left out", "1.50x (1.00-2.00)"):
        assert any(words in line for line in table)


def test_json_only_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--suite", "made-up", "--json-only", "--cells", "Elman", "--threads", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["settings"]["threads"] == 1


def test_without_rich_the_table_is_plain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "Table", None)
    assert command.main(["--suite", "made-up", "--cells", "Elman"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "cell   sizes    what                  ours ms  theirs over ours   rounds" in lines
    assert "Elman  theirs over ours  smallest  1      at least 1  1.50x  yes" in lines


def test_a_table_leaves_out_what_is_the_same_in_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for cells, is_there in (("Elman", True), ("*", False)):
        command.main(["--suite", "made-up", "--cells", cells])
        table, _, _ = capsys.readouterr().out.partition("what is promised")
        assert ("forward and backward" in table) is is_there


def test_list_prints_the_chosen_cases_and_measures_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--cells", "Leaky"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == [f"{suite}: Leaky 3x2x1x5 forward and backward" for suite in ("stepwise", "made-up")]


@pytest.mark.parametrize("options", [["--cells", "Elmann"], ["--sizes", "4x*"]])
def test_options_that_choose_nothing_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(options) == 2
    assert "no case is chosen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--suite", "stepwise,torhc"], "no suite is called torhc; there are stepwise, made-up"),
        (["--rounds", "0"], "must be 1 or more"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(options)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("load", "warned"), [(0.1, False), (0.9, True)])
def test_a_busy_machine_is_told_and_recorded(
    load: float, warned: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "load", lambda: load)
    command.main(["--suite", "made-up", "--json-only", "--cells", "Elman"])
    out, err = capsys.readouterr()
    assert json.loads(out)["machine"]["load"] == load
    assert ("others compute on this machine" in err) is warned


def test_a_bar_is_drawn_on_terminals_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
        with progress.bar("made-up", begun=1, whole=3) as announce:
            announce(SMALL[0])
        assert ("made-up: Elman" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_page_states_what_is_promised(suite: Suite) -> None:
    page = (DOCS / ("gpu.md" if suite.name.startswith("gpu") else "speed.md")).read_text(encoding="utf-8")
    for promise in suite.promises:
        if promise.least is not None or promise.most is not None:
            limit = f"at least {promise.least:g}" if promise.most is None else f"at most {promise.most:g}"
            assert f"| `{suite.name}` | {promise.name} | {promise.figure} | {promise.gather} | {limit} |" in page
