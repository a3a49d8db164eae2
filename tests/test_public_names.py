"""What `import leporello` gives, and what it takes: a fixed list of names, and nothing but torch."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from importlib import metadata

import leporello as lp

# A change here is a change of the public interface: it belongs into CHANGELOG.md too.
NAMES = [
    "Bidirectional",
    "Cell",
    "Checkpointed",
    "Elman",
    "ElmanJordan",
    "Feedback",
    "Full",
    "GRU",
    "GradientReport",
    "IndRNN",
    "Jordan",
    "LIF",
    "LSTM",
    "LayerNormLSTM",
    "Layers",
    "Leaky",
    "Loop",
    "MinGRU",
    "PeepholeLSTM",
    "Perceptron",
    "QuantiseReport",
    "RNN",
    "RTRL",
    "RandomTruncated",
    "Recurrent",
    "Stack",
    "Stateful",
    "Summary",
    "TimeDelay",
    "Truncated",
    "UORO",
    "ZoneoutLSTM",
    "analysis",
    "check_gradients",
    "detach",
    "errors",
    "export",
    "fold",
    "from_torch",
    "generate",
    "language",
    "load",
    "named",
    "once",
    "online",
    "quantise",
    "record",
    "resets_after",
    "rows",
    "save",
    "shared",
    "stream",
    "summary",
    "surrogate",
    "time",
    "to",
    "to_torch",
    "turing",
    "write_rows",
]

IMPORT_ALONE = """
import sys

visible = set(sys.argv[1:]) | set(sys.stdlib_module_names)

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in visible or top.startswith("_sysconfigdata"):  # part of Python, named after the platform
            return self.finder.find_spec(name, path, target)
        return None

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
import leporello
"""


def test_exported_names_are_fixed() -> None:
    assert sorted(lp.__all__) == NAMES


def test_every_exported_name_is_there() -> None:
    assert [name for name in NAMES if not hasattr(lp, name)] == []


def test_nothing_else_looks_public() -> None:
    packages = {name for name, value in vars(lp).items() if isinstance(value, types.ModuleType)}
    public = {name for name in vars(lp) if not name.startswith("_")}
    assert sorted(public - packages - set(NAMES)) == []


def test_import_needs_torch_alone() -> None:
    """In a process that cannot see any other package, numpy included, `import leporello` still works."""
    visible = ["leporello", *_import_names_of("torch")]
    command = [sys.executable, "-c", IMPORT_ALONE, *sorted(visible)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_only_requirement_is_torch() -> None:
    required = [line for line in metadata.requires("leporello") or [] if "extra ==" not in line]
    assert [_project(line) for line in required] == ["torch"]


def _import_names_of(project: str) -> set[str]:
    """What a project and its requirements, theirs too, can be imported as."""
    installed = {_project(found.name): found for found in metadata.distributions()}
    projects: set[str] = set()
    waiting = [project]
    while waiting:
        one = waiting.pop()
        if one in installed and one not in projects:
            projects.add(one)
            waiting += [_project(line) for line in installed[one].requires or [] if "extra ==" not in line]
    return {
        name
        for name, owners in metadata.packages_distributions().items()
        if projects & {_project(owner) for owner in owners}
    }


def _project(requirement: str) -> str:
    """The bare name of a requirement: 'Typing_Extensions>=4.10' is typing-extensions."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()
