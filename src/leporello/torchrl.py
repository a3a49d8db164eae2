"""`RecurrentModule`: a network in TorchRL, where states live in a TensorDict. Needs the package torchrl.

It takes the place of torchrl's `LSTMModule` and `GRUModule`, for any cell: the same keys, the same two modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.call.inputs import map_tensors
from leporello.errors import ArgumentError, MissingPackage
from leporello.loop.state import Tree, described, leaves_of
from leporello.loop.step import state_names
from leporello.nets.record import record
from leporello.nets.recurrent import Recurrent

try:
    from tensordict import TensorDictBase, unravel_key, unravel_key_list
    from tensordict.nn import TensorDictModuleBase, dispatch
    from torchrl.data import Unbounded
    from torchrl.envs import TensorDictPrimer
    from torchrl.modules import recurrent_mode
except ImportError as error:
    raise MissingPackage(
        "leporello.torchrl needs the package torchrl.", says=error, tries="pip install 'leporello[rl]'"
    ) from error

IS_INIT = "is_init"
Key = str | tuple[str, ...]


class RecurrentModule(TensorDictModuleBase):
    """A network that reads an entry of a TensorDict and its state, and writes its output and its next state.

    One step at a time by default, as a policy runs in a collector; a whole trajectory, whose steps are the last axis of
    the TensorDict, within `torchrl.modules.set_recurrent_mode(True)`. Where `is_init` is true, a row begins with the
    cell's initial state, in both modes. Both give the same outputs and the same next states.

    net       an lp.Recurrent, or a cell with an initial state; its output is one tensor
    in_key    the entry to read; the state is then read from "recurrent_state_h" and so on, a key for each leaf
    in_keys   instead: the entry, and a key for each leaf of the state, in their order
    out_key   the entry to write; next states are then written to ("next", "recurrent_state_h") and so on
    out_keys  instead: the entry, and a key for each leaf of the next state; or the entry alone
    is_init_key             booleans [..., 1]: where a row begins anew, as torchrl's `InitTracker` writes them
    default_recurrent_mode  the mode outside of `set_recurrent_mode`

    >>> module = RecurrentModule(lp.GRU(3, 4), in_key="observation", out_key="features")
    >>> module.in_keys
    ['observation', 'recurrent_state_h', 'is_init']
    >>> module.out_keys
    ['features', ('next', 'recurrent_state_h')]
    >>> env = torchrl.envs.TransformedEnv(env, module.make_tensordict_primer())   # doctest: +SKIP
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        in_key: Key | None = None,
        in_keys: Sequence[Key] | None = None,
        out_key: Key | None = None,
        out_keys: Sequence[Key] | None = None,
        is_init_key: Key = IS_INIT,
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        self.net = net if isinstance(net, Recurrent) else Recurrent(net)
        self.is_init_key = unravel_key(is_init_key)
        initial = leaves_of(self.net.initial_state(1))
        names = [f"recurrent_state_{name.replace('.', '_')}" for name in state_names(self.net.cell, initial)]
        self.in_keys = [*_keys("in", in_key, in_keys, names), self.is_init_key]
        self.out_keys = _keys("out", out_key, out_keys, [("next", name) for name in names])
        self._default_mode = default_recurrent_mode
        self._recording: tuple[Recurrent, ...] = ()  # in a tuple, so that its parameters are not counted twice

    @property
    def recurrent_mode(self) -> bool:
        """Whether a call reads whole trajectories."""
        mode = recurrent_mode()
        return self._default_mode if mode is None else mode

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        inputs = self._entry(tensordict, self.in_keys[0])
        is_init = self._entry(tensordict, self.is_init_key)
        steps = tensordict.shape[-1:] if self.recurrent_mode else ()
        if self.recurrent_mode and not tensordict.ndim:
            raise ArgumentError(
                "a TensorDict without an axis has no steps to read.",
                came="batch_size=[]",
                expected="[..., steps]",
                tries="set_recurrent_mode(False) reads one step",
            )
        axes, before = tensordict.ndim, tensordict.shape[: tensordict.ndim - len(steps)]
        rows = before.numel()
        x = inputs.reshape(rows, *steps, *inputs.shape[axes:])
        reset = is_init.reshape(rows, *steps)
        state = self._state(tensordict, rows, len(steps))
        if steps:
            output, after = self._whole(x, state, reset)
        else:
            output, following = self.net.step(x, state, reset=reset)
            after = leaves_of(following)
        for key, value in zip(self.out_keys, [output, *after], strict=False):
            if not isinstance(value, Tensor):
                raise ArgumentError(
                    "the output of this network is not one tensor.",
                    came=described(value),
                    tries="a cell that joins them",
                )
            tensordict.set(key, value.reshape(*tensordict.shape, *value.shape[1 + len(steps) :]))
        return tensordict

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform by which an environment knows the entries of the state: zeros before the first step."""
        state_keys = self.in_keys[1:-1]
        for key, after in zip(state_keys, self.out_keys[1:], strict=False):
            if unravel_key(("next", key)) != after:
                raise ArgumentError(
                    "the next state is not written where the next step reads it.",
                    came=f"{key} in, {after} out",
                    expected=f'("next", {key!r})',
                )
        leaves = leaves_of(self.net.initial_state(1))
        specs = {
            key: Unbounded(shape=leaf.shape[1:], dtype=leaf.dtype) for key, leaf in zip(state_keys, leaves, strict=True)
        }
        return TensorDictPrimer(specs, expand_specs=True)

    def _entry(self, tensordict: TensorDictBase, key: Key) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise ArgumentError(
                f"the TensorDict has no entry {key!r}.",
                came=", ".join(map(repr, tensordict.keys(True, True))) or "an empty TensorDict",
                tries="torchrl.envs.InitTracker() writes it" if key == self.is_init_key else None,
            )
        return value

    def _state(self, tensordict: TensorDictBase, rows: int, time_axes: int) -> Tree:
        """The state before the first step, the initial one where the TensorDict has none."""
        initial = self.net.initial_state(rows)
        found = [tensordict.get(key, None) for key in self.in_keys[1:-1]]
        if any(leaf is None for leaf in found):
            return initial
        axes = tensordict.ndim - time_axes
        leaves = [leaf.select(axes, 0) if time_axes else leaf for leaf in found]
        leaves = [leaf.reshape(rows, *leaf.shape[axes:]) for leaf in leaves]
        return pytree.tree_unflatten(leaves, pytree.tree_structure(initial))

    def _whole(self, x: Tensor, state: Tree, reset: Tensor) -> tuple[Any, list[Any]]:
        """Outputs, and the states after each step if they are to be written; (rows, steps, ...) each."""
        if not self.net.batch_first:
            x, reset = x.transpose(0, 1), reset.transpose(0, 1)
        after: list[Any] = []
        if len(self.out_keys) > 1:
            (output, states), _ = self._recorded()(x, state, resets=reset)
            after = list(states.values())
        else:
            output, _ = self.net(x, state, resets=reset)
        if self.net.batch_first:
            return output, after
        return map_tensors(lambda leaf: leaf.transpose(0, 1), output), [leaf.transpose(0, 1) for leaf in after]

    def _recorded(self) -> Recurrent:
        """The network whose outputs also hold its states; it shares the cell."""
        net = self.net
        if not self._recording or self._recording[0].cell.cell is not net.cell:
            self._recording = (Recurrent(record(net.cell)),)
        recording = self._recording[0]
        recording.engine, recording.gradient, recording.batch_first = net.engine, net.gradient, net.batch_first
        return recording


def _keys(side: str, key: Key | None, keys: Sequence[Key] | None, names: Sequence[Key]) -> list[Key]:
    """The keys of the entry and of the leaves of the state."""
    if (key is None) == (keys is None):
        raise ArgumentError(
            f"one of '{side}_key' and '{side}_keys' is needed.", came="both" if key is not None else "neither"
        )
    found: list[Key] = unravel_key_list([key, *names] if keys is None else list(keys))
    if len(found) != 1 + len(names) and not (side == "out" and len(found) == 1):
        raise ArgumentError(
            f"'{side}_keys' has another length than the state has leaves.",
            came=found,
            expected=f"the entry and {len(names)} for the state: {', '.join(map(repr, names))}",
        )
    return found
