"""Kernels stay within their memory, and do nothing that C leaves undefined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leporello.engine.cpu.build import compiler

HOME = Path(__file__).parents[2]
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"


def watched(program: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the library that watches memory loaded in front of all others."""
    files = (subprocess.check_output([str(compiler()), f"-print-file-name={name}"], text=True).strip()
             for name in ("libasan.so", "libstdc++.so.6"))  # fmt: skip
    environment = {
        **os.environ,
        "LEPORELLO_CACHE": str(cache),
        "LEPORELLO_CFLAGS": FLAGS,
        "LD_PRELOAD": " ".join(files),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python and torch keep memory to the end
        "OMP_NUM_THREADS": "2",
    }
    return subprocess.run(
        [sys.executable, *program], env=environment, cwd=HOME, capture_output=True, text=True, check=False, timeout=3600
    )


@pytest.fixture(autouse=True)
def _with_gcc() -> None:
    version = subprocess.run([str(compiler()), "--version"], capture_output=True, text=True, check=False).stdout
    if sys.platform != "linux" or "Free Software Foundation" not in version:
        pytest.skip("the libraries that watch memory are found where gcc has them, on Linux")


BROKEN = """
from leporello.engine.cpu.build import library
text = "int run(void) {{ volatile int n = 3; int *volatile p = __builtin_malloc(12); {fault} }}"
library(text)[0].run()
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("fault", "said"),
    [("return p[n];", "heap-buffer-overflow"), ("return 1 << (n * 20);", "shift exponent")],
    ids=["memory", "undefined"],
)
def test_a_fault_would_be_seen(fault: str, said: str, tmp_path: Path) -> None:
    run = watched(["-c", BROKEN.format(fault=fault)], tmp_path / "cache")
    assert run.returncode
    assert said in run.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kernels_run_clean(tmp_path: Path) -> None:
    run = watched(["-m", "tests.engine.sanitized"], tmp_path / "cache")
    assert not run.returncode, run.stderr[:4000] or run.stdout
    cells, kernels = (int(word) for word in run.stdout.split() if word.isdigit())
    assert cells > 45
    assert kernels > 90
