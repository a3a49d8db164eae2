"""Checkpoints: a training run at one moment, in a safetensors file.

The metadata of the file hold the counters of the run as JSON and a digest of all tensors, so that a damaged, cut or
foreign file is refused. It is written atomically. Names of tensors:

    net.NAME               parameters and buffers
    optimiser.INDEX.NAME   what the optimiser keeps of each parameter
    rank.R.state.INDEX     the leaves of the state that process R carries to the next window
    rank.R.generator.cpu   its generator of random numbers; generator.cuda on a GPU
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.atomic_write import write_atomically
from leporello.errors import FileMismatch, MissingPackage
from leporello.loop.state import Tree, leaves_of
from leporello.nets.recurrent import Recurrent

VERSION = 1
METADATA_KEY = "leporello.run"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (a JSON object) to a file, atomically."""
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    metadata = json.dumps({"version": VERSION, "digest": _digest(copies), **facts})
    write_atomically(path, _safetensors().torch.save(copies, metadata={METADATA_KEY: metadata}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name and the facts of a file; a damaged one, or one of another version, is refused."""
    safetensors = _safetensors()
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise FileMismatch("there is no checkpoint to read.", file=path, says=error.strerror or error) from error
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get(METADATA_KEY)
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise FileMismatch(
            "the checkpoint is cut or damaged.", file=path, says=error, tries=_use_other(path)
        ) from error
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
            "the checkpoint is damaged: its numbers are not those written.", file=path, tries=_use_other(path)
        )
    return tensors, facts


def read_checkpoint_header(file: Path) -> tuple[int, dict[str, Any]]:
    """The number of parameters in a checkpoint, and its facts, without reading the tensors."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            facts = json.loads((opened.metadata() or {}).get(METADATA_KEY, "null"))
            sizes = {name: math.prod(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FileMismatch("the checkpoint is cut or damaged.", file=file, says=error) from error
    if not isinstance(facts, dict):
        raise FileMismatch("the file is no checkpoint of a training run.", file=file)
    return _parameter_count(sizes), facts


def _parameter_count(sizes: Mapping[str, int]) -> int:
    """The number of trained parameters: those of which the optimiser keeps something.

    Where it keeps nothing, as before the first update and with plain SGD, all tensors of the network count.

    sizes   the number of elements of each tensor, by name
    """
    trained: dict[str, int] = {}
    for name, size in sizes.items():
        if name.startswith("optimiser."):
            index = name.split(".")[1]
            trained[index] = max(size, trained.get(index, 0))
    all_sizes = [size for name, size in sizes.items() if name.startswith("net.")]
    return sum(trained.values()) or sum(all_sizes)


def tensors_below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `name.`, by the rest of their names."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 of all names, dtypes, shapes and values, in the order of names."""
    ordered = {name: tensors[name] for name in sorted(tensors)}
    return hashlib.sha256(_safetensors().torch.save(ordered)).hexdigest()


def _use_other(path: Path) -> str | None:
    """Advice to use the other checkpoint of the folder, if there is one."""
    names = [name for name in ("last.safetensors", "best.safetensors") if name != path.name]
    others = [name for name in names if (path.parent / name).is_file()]
    return f"copy {others[0]} of that folder over it, and go on from there" if others else None


def _safetensors() -> ModuleType:
    """The optional package safetensors."""
    try:
        import safetensors.torch  # here, because `import leporello` needs torch alone
    except ImportError as error:
        raise MissingPackage(
            "checkpoints need the package safetensors.", tries="pip install 'leporello[language]'"
        ) from error
    return safetensors


def process_tensors(state: Tree, device: torch.device) -> dict[str, Tensor]:
    """The tensors that only this process has, by their names after `rank.R.`: its state and its random generators.

    state   carried to the next window; None: it carries none
    """
    leaves = [] if state is None else leaves_of(state)
    tensors = {f"state.{index}": leaf.detach().cpu() for index, leaf in enumerate(leaves)}
    tensors["generator.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        tensors["generator.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def training_tensors(
    net: Recurrent, optimiser: torch.optim.Optimizer, processes: Sequence[Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """All tensors of a training, by the names of a checkpoint.

    processes   `process_tensors` of each process, in the order of ranks
    """
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    for index, values in optimiser.state_dict()["state"].items():
        kept = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        tensors |= {f"optimiser.{index}.{name}": value for name, value in kept.items()}
    for rank, process in enumerate(processes):
        tensors |= {f"rank.{rank}.{name}": value for name, value in process.items()}
    return tensors


def load_training(net: Recurrent, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the parameters and the state of the optimiser from a checkpoint."""
    load_network(net, tensors)
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors_below(tensors, "optimiser").items():
        index, key = name.split(".", 1)
        states.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})


def load_network(net: Recurrent, tensors: Mapping[str, Tensor]) -> None:
    """Load parameters and buffers from a checkpoint; those of another network are refused."""
    expected, saved = _shapes(net.state_dict()), _shapes(tensors_below(tensors, "net"))
    for name in [*expected, *saved]:
        if expected.get(name) != saved.get(name):
            raise FileMismatch(
                "the checkpoint is that of another network than config.toml asks for.",
                parameter=name,
                came=saved.get(name, "none"),
                expected=expected.get(name, "none"),
                tries="the config.toml that the run was begun with",
            )
    net.load_state_dict(tensors_below(tensors, "net"))


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The dtype and shape of each tensor in words: float32 [3, 4]."""
    return {name: f"{value.dtype}"[6:] + f" {list(value.shape)}" for name, value in tensors.items()}


def load_process(tensors: Mapping[str, Tensor], net: Recurrent, batch: int, device: torch.device) -> Any:
    """Set the random number generators of this process, and return the state that it carries; None if it carries none.

    tensors      of this process, as `process_tensors` names them
    net, batch   from which the structure of the state is known
    """
    torch.set_rng_state(tensors["generator.cpu"])
    if "generator.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["generator.cuda"], device)
    leaves = tensors_below(tensors, "state")
    if not leaves:
        return None
    _, structure = pytree.tree_flatten(net.initial_state(batch))
    return pytree.tree_unflatten([leaves[str(index)].to(device) for index in range(len(leaves))], structure)
