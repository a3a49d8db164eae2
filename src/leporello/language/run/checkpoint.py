"""A training run at one moment, in a safetensors file: parameters, optimiser, states, generators and counters.

Never a pickle. The file is written under another name, synced and renamed; its metadata hold the counters as JSON and a
digest of all numbers, so that a damaged, cut or foreign file is told apart. Knows tensors and files; knows nothing of
what is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.atomic_write import write_atomically
from leporello.errors import FileMismatch
from leporello.loop.state import Tree, leaves_of
from leporello.modules.recurrent import Recurrent

VERSION = 1
KEY = "leporello.run"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts, whole or not at all."""
    own = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    told = json.dumps({"version": VERSION, "digest": _digest(own), **facts})
    write_atomically(path, _safetensors().torch.save(own, metadata={KEY: told}))


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


# ---- (language.snapshot) The tensors of a training at one moment, by name, and back: the network, the optimiser, and what each process has.
#
# Knows networks, optimisers and generators of random numbers; knows nothing of files.
#
#     net.NAME               parameters and buffers
#     optimiser.INDEX.NAME   what the optimiser keeps of each parameter
#     rank.R.state.INDEX     the leaves of the state that process R hands on
#     rank.R.generator.cpu   its generator of random numbers


def of_one_process(state: Tree, device: torch.device) -> dict[str, Tensor]:
    """What only this process has."""
    leaves = [] if state is None else leaves_of(state)
    found = {f"state.{index}": leaf.detach().cpu() for index, leaf in enumerate(leaves)}
    found["generator.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        found["generator.cuda"] = torch.cuda.get_rng_state(device)
    return found


def of_all(
    net: Recurrent, optimiser: torch.optim.Optimizer, everyone: Sequence[Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """All tensors of a training.

    everyone   what each process has, in the order of ranks
    """
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    for index, values in optimiser.state_dict()["state"].items():
        own = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        tensors |= {f"optimiser.{index}.{name}": value for name, value in own.items()}
    for rank, given in enumerate(everyone):
        tensors |= {f"rank.{rank}.{name}": value for name, value in given.items()}
    return tensors


def put_back(net: Recurrent, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Parameters and what the optimiser keeps."""
    put_into(net, tensors)
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in part(tensors, "optimiser").items():
        index, own = name.split(".", 1)
        states.setdefault(int(index), {})[own] = value
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})


def put_into(net: Recurrent, tensors: Mapping[str, Tensor]) -> None:
    """Parameters and buffers; those of another network are refused."""
    own, theirs = _shapes(net.state_dict()), _shapes(part(tensors, "net"))
    for name in [*own, *theirs]:
        if own.get(name) != theirs.get(name):
            raise FileMismatch(
                "the checkpoint is that of another network than config.toml asks for.",
                parameter=name,
                came=theirs.get(name, "none"),
                expected=own.get(name, "none"),
                tries="the config.toml that the run was begun with",
            )
    net.load_state_dict(part(tensors, "net"))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{value.dtype}"[6:] + f" {list(value.shape)}" for name, value in tensors.items()}


def state_again(own: Mapping[str, Tensor], net: Recurrent, batch: int, device: torch.device) -> Any:
    """The state that a process hands on, None before the first step; its random numbers go on where they were."""
    torch.set_rng_state(own["generator.cpu"])
    if "generator.cuda" in own:
        torch.cuda.set_rng_state(own["generator.cuda"], device)
    leaves = part(own, "state")
    if not leaves:
        return None
    _, form = pytree.tree_flatten(net.initial_state(batch))
    return pytree.tree_unflatten([leaves[str(index)].to(device) for index in range(len(leaves))], form)
