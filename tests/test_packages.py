"""The wheel and the sdist in an empty environment: what they hold, and that the extras suffice. In make check-all.

Each Python on the PATH from 3.11 on that starts is taken, with the torch of constraints.txt; LEPORELLO_TORCH names
other versions: `LEPORELLO_TORCH="2.11.0 2.13.0" make check-all`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHONS = ["python3.11", "python3.12", "python3.13", "python3.14"]
TORCHES = os.environ.get("LEPORELLO_TORCH", "").split() or [""]  # "": as constraints.txt has it

pytestmark = pytest.mark.slow

PROGRAM = """
import torch
from torch import nn
import leporello as lp

class Leaky(lp.Cell):
    def __init__(self):
        super().__init__(h=5)
        self.U, self.W = nn.Linear(3, 5), nn.Linear(5, 5)

    def forward(self, x, h):
        h = 0.9 * h + 0.1 * torch.tanh(self.U(x) + self.W(h))
        return h, h

net, inputs = lp.Recurrent(Leaky()), torch.randn(7, 2, 3)
net(inputs)[0].sum().backward()
print(lp.check_gradients(net, inputs))
"""


def starts(python: str) -> bool:
    """Whether an interpreter is there; pyenv has names on the PATH that do not start."""
    path = shutil.which(python)
    return path is not None and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def run(*command: object, cwd: Path | None = None) -> str:
    """What a command that succeeds prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEPORELLO"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, built from the sdist, and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_they_hold_the_package_with_its_types_and_the_command(packages: tuple[Path, Path]) -> None:
    wheel, sdist = packages
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"leporello", "leporello_command"}
    assert {"leporello/py.typed", "leporello/engine/cpu/functions.c", "leporello_command/outline.py"} <= set(names)
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "constraints.txt", "tests/test_packages.py", "docs/index.md"} <= inside


@pytest.mark.parametrize("torch", TORCHES, ids=lambda version: f"torch-{version or 'pinned'}")
@pytest.mark.parametrize("python", [python for python in PYTHONS if starts(python)])
def test_an_empty_environment_runs_it_and_its_command(
    python: str, torch: str, packages: tuple[Path, Path], tmp_path: Path
) -> None:
    """torch alone first; then `leporello[cli]`, which trains to the end."""
    run(python, "-m", "venv", tmp_path / "env")
    here = tmp_path / "env" / "bin"
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not (torch and "torch==" in line)]
    (tmp_path / "pins.txt").write_text("\n".join([*pins, *([f"torch=={torch}"] if torch else [])]))
    install = [here / "python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", tmp_path / "pins.txt"]
    wheel, sdist = packages
    run(*install, "torch")
    run(*install, wheel)
    said = run(here / "python", "-c", PROGRAM, cwd=tmp_path)
    assert "agrees with the plain loop" in said
    missing = subprocess.run([here / "leporello", "--help"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "pip install 'leporello[cli]'" in missing.stderr
    run(*install, f"{sdist}[cli]")
    assert "train" in run(here / "leporello", "--help")
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60)
    options = ["--cell", "gru", "--hidden", 8, "--batch", 4, "--window", 8, "--epochs", 1, "--sample-every", 0]
    run(here / "leporello", "train", "text.txt", *options, "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "best.safetensors").is_file()
    assert run(here / "leporello", "generate", "run", "--prompt", "to ", "--length", 20, cwd=tmp_path).startswith("to ")
