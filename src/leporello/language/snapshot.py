"""The tensors of a training at one moment, by name, and back: the network, the optimiser, and what each process has.

Knows networks, optimisers and generators of random numbers; knows nothing of files.

    net.NAME               parameters and buffers
    optimiser.INDEX.NAME   what the optimiser keeps of each parameter
    rank.R.state.INDEX     the leaves of the state that process R hands on
    rank.R.generator.cpu   its generator of random numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.errors import FileMismatch
from leporello.language.checkpoint import part
from leporello.loop.state import Tree, leaves_of
from leporello.nets.recurrent import Recurrent


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
