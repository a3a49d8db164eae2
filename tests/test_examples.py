"""Every example runs from the command line; with few updates, since here only that it runs is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nets.twins import thoroughly

EXAMPLES = Path(__file__).parent.parent / "examples"

# one row an example: the options that make it short
SHORT = {
    "01_memory.py": ["--updates", "2", "--batch", "3", "--hidden", "5", "--length", "7", "--lengths", "1", "7", "63"],
    "02_influence_balancing.py": ["--updates", "3"],
    "03_teacher_forcing.py": ["--quick"],
    "07_audio_in_c.py": ["--updates", "2", "--length", "120", "--seconds", "0.1", "--hidden", "5"],
    "08_microcontroller.py": ["--updates", "2", "--length", "31", "--hidden", "9"],
    "10_1_elman.py": [],
    "10_2_jordan.py": [],
    "10_3_summary.py": [],
    "10_4_teacher_forcing.py": [],
}


def test_every_example_has_its_row() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SHORT)


@pytest.mark.parametrize("name", [*list(SHORT)[:1], *thoroughly(*list(SHORT)[1:])])
def test_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *SHORT[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
