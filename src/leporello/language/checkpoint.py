"""A training run at one moment, in a safetensors file: parameters, optimiser, states, generators and counters.

Never a pickle. The file is written under another name, synced and renamed; its metadata hold the counters as JSON and a
digest of all numbers, so that a damaged, cut or foreign file is told apart. Knows tensors and files; knows nothing of
what is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from leporello.errors import FileMismatch
from leporello.language.whole import write_whole

VERSION = 1
KEY = "leporello.run"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts, whole or not at all."""
    own = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    told = json.dumps({"version": VERSION, "digest": _digest(own), **facts})
    write_whole(path, _safetensors().torch.save(own, metadata={KEY: told}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts, if the file is whole and of this version."""
    safetensors = _safetensors()
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise FileMismatch("there is no checkpoint to read.", file=path, says=error.strerror or error) from error
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get(KEY)
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise FileMismatch("the checkpoint is cut or damaged.", file=path, says=error, tries=_other(path)) from error
    if text is None:
        raise FileMismatch(
            "the file is no checkpoint of a training run.", file=path, expected="one that leporello train wrote"
        )
    facts = json.loads(text)
    if facts.pop("version", None) != VERSION:
        raise FileMismatch(
            "the checkpoint has another version of the format.",
            file=path,
            came=json.loads(text).get("version"),
            expected=VERSION,
            tries="the version of leporello that wrote it",
        )
    if facts.pop("digest", None) != _digest(tensors):
        raise FileMismatch(
            "the checkpoint is damaged: its numbers are not those written.", file=path, tries=_other(path)
        )
    return tensors, facts


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors below a name, without it."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Of all names, types, shapes and numbers."""
    ordered = {name: tensors[name] for name in sorted(tensors)}
    return hashlib.sha256(_safetensors().torch.save(ordered)).hexdigest()


def _other(path: Path) -> str | None:
    """Another checkpoint in the folder, if there is one."""
    names = [name for name in ("last.safetensors", "best.safetensors") if name != path.name]
    there = [name for name in names if (path.parent / name).is_file()]
    return f"copy {there[0]} of that folder over it, and go on from there" if there else None


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch  # here, because `import leporello` needs torch alone
    except ImportError as error:
        raise ImportError("checkpoints need the package safetensors: pip install 'leporello[language]'") from error
    return safetensors
