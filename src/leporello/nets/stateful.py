"""`Stateful`: a module that keeps its state in attributes, made into a cell."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError, MissingState
from leporello.loop.cell import Cell
from leporello.loop.state import Tree, leaf_names, leaves_of, map_leaves, state_of
from leporello.loop.step import passed_context, signature_of

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Stateful(Cell):
    """A cell whose state is what a module keeps in attributes from one call to the next.

    module       called with the input alone, or with the input and the context of the call where it needs a second
                 argument; it reads the attributes and sets them anew
    attributes   their names; of a submodule with its path: "lif.mem". Each holds a tensor (batch, ...), a tuple, list
                 or dict of them
    begin        begin(module, batch) sets them to what they are before the first step. Without it they begin with zeros
                 in the shape they have when the cell is made, or are passed as `state` of a call; torch.zeros(0) and
                 torch.zeros(1), as libraries have them before the first step, are no such shape

    Between calls the module's own attributes stay as they are: the state is passed and returned.

    >>> class Counter(nn.Module):
    ...     def forward(self, x):
    ...         self.sum = self.sum + x
    ...         return self.sum
    >>> counter = Stateful(Counter(), ["sum"])
    >>> counter(torch.ones(2, 1), torch.full((2, 1), 3.0))[1].tolist()
    [[4.0], [4.0]]
    """

    def __init__(
        self,
        module: nn.Module,
        attributes: Sequence[str],
        begin: Callable[[nn.Module, int], Any] | None = None,
    ) -> None:
        super().__init__()
        self.module = _checked(module)
        self.attributes = _names(attributes)
        self.begin = begin
        for name in self.attributes:
            self._owner(name)
        present = None if begin is not None else [self._get(name) for name in self.attributes]
        known = present is not None and all(_has_shape(leaf) for leaf in leaves_of(present))
        self.forms = map_leaves(lambda leaf: (tuple(leaf.shape[1:]), leaf.dtype), present) if known else None

    def forward(self, x: Any, state: Tree) -> tuple[Any, Tree]:
        before = [self._get(name) for name in self.attributes]
        try:
            self._set(self._values(state))
            output = self.module(x, *self._context())
            return output, self._tree([self._get(name) for name in self.attributes])
        finally:
            self._set(before)

    def _context(self) -> tuple[Any, ...]:
        """The second argument of the module, in a tuple: the context of the call; empty where it needs none."""
        needed = [
            p for p in signature_of(self.module).parameters.values() if p.default is p.empty and p.kind in _BY_PLACE
        ]
        return passed_context(self.module, needed[1]) if len(needed) > 1 else ()

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        if self.begin is not None:
            before = [self._get(name) for name in self.attributes]
            try:
                self.begin(self.module, batch)
                made = [self._get(name) for name in self.attributes]
            finally:
                self._set(before)
            return self._tree(map_leaves(lambda leaf: _like(leaf, device, dtype), made))
        if self.state_is_passed:
            raise MissingState(
                "what this module begins with is not known.",
                cell=type(self.module).__name__,
                expected="the argument 'state', or 'begin' of lp.Stateful",
                tries=f"lp.Stateful(module, {list(self.attributes)}, begin=lambda module, batch: ...)",
            )
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        device = device or (like.device if like is not None else None)
        return self._tree(
            torch.utils._pytree.tree_map(
                lambda form: torch.zeros(batch, *form[0], device=device, dtype=_dtype(form[1], dtype)),
                self.forms,
                is_leaf=lambda form: isinstance(form, tuple) and len(form) == 2 and isinstance(form[1], torch.dtype),
            )
        )

    @property
    def state_is_passed(self) -> bool:
        """Whether what it begins with is not known, so that a call has to pass it."""
        return self.begin is None and self.forms is None

    def state_names(self) -> list[str]:
        return list(self.attributes) if self.state_is_passed else self.names_of(self.initial_state(1))

    def names_of(self, state: Tree) -> list[str]:
        """The names of the leaves of a state that is passed."""
        values = self._values(state)
        return [
            name.replace("value", attribute, 1)
            for attribute, value in zip(self.attributes, values, strict=True)
            for name in leaf_names(value, "value")
        ]

    def _values(self, state: Tree) -> list[Any]:
        """What each attribute is set to, of a state."""
        return [state] if len(self.attributes) == 1 else list(state)

    def _tree(self, values: Sequence[Any]) -> Tree:
        """The state with these values of the attributes."""
        if len(values) == 1:
            return values[0]
        names = [name.replace(".", "_") for name in self.attributes]
        return state_of(names, values) if len(set(names)) == len(names) else tuple(values)

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        try:
            return self.module.get_submodule(path), attribute
        except AttributeError:
            raise ArgumentError(
                f"the module has no part '{path}'.",
                came=repr(name),
                expected="names of attributes, of a submodule with its path",
            ) from None

    def _get(self, name: str) -> Any:
        owner, attribute = self._owner(name)
        return getattr(owner, attribute, None)

    def _set(self, values: Sequence[Any]) -> None:
        for name, value in zip(self.attributes, values, strict=True):
            owner, attribute = self._owner(name)
            if value is None and not hasattr(owner, attribute):
                continue
            setattr(owner, attribute, value)


def _checked(module: Any) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            "the argument 'module' is no module.", came=type(module).__name__, expected="an nn.Module", tries="lp.Cell"
        )
    return module


def _names(attributes: Any) -> tuple[str, ...]:
    names = (attributes,) if isinstance(attributes, str) else tuple(attributes)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ArgumentError(
            "the argument 'attributes' has no names of attributes.",
            came=repr(attributes),
            expected="a list of different names",
            tries='lp.Stateful(module, ["mem"])',
        )
    return names


def _has_shape(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.numel() > 0 and leaf.shape != (1,)


def _like(leaf: Any, device: torch.device | None, dtype: torch.dtype | None) -> Any:
    """A leaf of the initial state on the device and in the dtype of the inputs."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.to(device=device or leaf.device, dtype=_dtype(leaf.dtype, dtype))


def _dtype(own: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """The wanted dtype where both are real and floating; integers, booleans and complex numbers stay."""
    return wanted if wanted is not None and own.is_floating_point and wanted.is_floating_point else own
