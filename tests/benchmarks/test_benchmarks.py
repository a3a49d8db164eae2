"""`python -m benchmarks` on small cases: tables, then one JSON line."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as command
from benchmarks import report
from benchmarks.cases import CASES, CELLS, Case, matching

SMALL = tuple(Case(cell, length=3, batch=2, hidden=5) for cell in CELLS)


@pytest.fixture
def small_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cases.CASES", SMALL)


def test_cases_are_those_the_project_promises() -> None:
    assert len(CASES) == 5 * 2 * 2
    assert {(case.length, case.batch, case.hidden) for case in CASES} == {
        (length, 32, hidden) for length in (64, 512) for hidden in (64, 256)
    }


def test_patterns_choose_cases() -> None:
    assert {case.cell for case in matching("LSTM-*")} == {"LSTM"}
    assert matching("no such case") == ()


@pytest.mark.usefixtures("small_cases")
def test_every_cell_is_measured_and_the_last_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rounds", "2", "--memory"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert [case["case"] for case in record["cases"]] == [case.name for case in SMALL]
    assert set(record["cases"][0]["milliseconds"]) == set(record["cases"][0]["peak_bytes"]) == {"eager", "stepwise"}
    assert set(record["geometric_means"]["stepwise"]) == {"speed", "memory"}
    assert any("geometric mean" in line for line in table)


@pytest.mark.usefixtures("small_cases")
def test_json_only_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rounds", "1", "--json-only", "--cases", "Elman*"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["settings", "machine", "cases", "geometric_means"]


@pytest.mark.usefixtures("small_cases")
def test_without_rich_the_table_is_plain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "Table", None)
    assert command.main(["--rounds", "1", "--cases", "Elman*"]) == 0
    assert "eager ms" in capsys.readouterr().out


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--cases", "Elmann"]) == 2
    assert "no case is called 'Elmann'" in capsys.readouterr().err
