"""What `import leporello` loads and takes beside torch, and what `leporello --help` does without torch."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

IMPORTED = r"import time:\s+\d+ \|\s+(\d+) \| (torch|leporello)\n"


def seconds() -> dict[str, float]:
    """How long importing torch takes in a new process, and importing leporello after it."""
    command = [sys.executable, "-X", "importtime", "-c", "import torch; import leporello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return {name: int(microseconds) / 1e6 for microseconds, name in re.findall(IMPORTED, done.stderr)}


def loaded_by(statement: str) -> set[str]:
    """The modules that a new process has loaded after a statement."""
    command = [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split())


def test_importing_leporello_adds_little_to_torch() -> None:
    """At most 0.5 s where torch takes 1.2 to 1.5 s; as a share, because other programs slow down both."""
    shares = [times["leporello"] / times["torch"] for times in (seconds() for _ in range(3))]
    assert statistics.median(shares) < 0.35


def test_importing_leporello_loads_neither_sympy_nor_dynamo_nor_an_optional_package() -> None:
    optional = {"rich", "typer", "matplotlib", "tokenizers", "safetensors", "tomli_w", "platformdirs", "tensordict"}
    assert {"sympy", "torch._dynamo", *optional} & (loaded_by("import leporello") - loaded_by("import torch")) == set()


def test_the_tracer_is_loaded_as_a_network_is_made_so_that_no_first_call_waits_for_it() -> None:
    statements = """
import sys, torch
tracer = {"sympy", "torch._dynamo", "leporello.loop.symbolic_shapes"} - set(sys.modules)
import leporello as lp
cell = lp.Elman(2, 3, 1)
assert tracer and not tracer & set(sys.modules)
lp.Recurrent(cell)
assert tracer <= set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", statements], timeout=120, check=True)
