"""The contestant `jax`: `lax.scan` under `jit` with `value_and_grad`. Imported only where jax is installed.

Threads: XLA makes its pool when jax is first used, as large as the environment variable NPROC says; it is set here to
torch's number of threads. A later change of torch's number does not reach it. XLA gives parts of one operator to the
pool only where it finds them large enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import torch
from jax import Array, lax
from torch import Tensor

from benchmarks.cases import TRAINING, Exercise
from benchmarks.jax_steps import STEPS, Step

jax.config.update("jax_platforms", "cpu")


class JaxScan:
    """`jax.lax.scan` over the step of `jax_steps.py`, compiled with its gradient before it is timed."""

    name = "jax"

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Scan:
        os.environ["NPROC"] = str(torch.get_num_threads())
        cell = exercise.cell
        state = cell.initial_state(exercise.inputs.shape[1])
        return Scan(
            _swept(STEPS[type(cell).__name__], backward=what == TRAINING),
            {name: _array(parameter) for name, parameter in cell.named_parameters()},
            _array(state) if isinstance(state, Tensor) else tuple(map(_array, state)),
            _array(exercise.inputs),
            _array(exercise.weighting),
        )


@dataclass(frozen=True)
class Scan:
    """A task: outputs and gradients are there when the call returns."""

    swept: Callable[..., tuple[Array, dict[str, Array]]]
    parameters: dict[str, Array]
    state: Any
    inputs: Array
    weighting: Array

    def __call__(self) -> tuple[Array, dict[str, Array]]:
        return jax.block_until_ready(self.swept(self.parameters, self.state, self.inputs, self.weighting))

    def clear(self) -> None:
        """Nothing is left behind: gradients are results."""

    def results(self, steps: int) -> dict[str, Tensor | None]:
        outputs, gradients = replace(self, weighting=self.weighting.at[steps:].set(0))()
        found: dict[str, Tensor | None] = {"outputs": _tensor(outputs)[:steps]}
        if gradients:
            found |= {f"gradient {index}": _tensor(gradients[name]) for index, name in enumerate(self.parameters)}
        return found


def _swept(step: Step, backward: bool) -> Callable[..., tuple[Array, dict[str, Array]]]:
    def forward(parameters: dict[str, Array], state: Any, inputs: Array) -> Array:
        _, outputs = lax.scan(lambda state, x: step(parameters, state, x), state, inputs)
        return outputs

    def weighted(parameters: dict[str, Array], state: Any, inputs: Array, weighting: Array) -> tuple[Array, Array]:
        outputs = forward(parameters, state, inputs)
        return jnp.vdot(outputs, weighting), outputs

    def swept(parameters: dict[str, Array], state: Any, inputs: Array, weighting: Array) -> Any:
        if not backward:
            return forward(parameters, state, inputs), {}
        (_, outputs), gradients = jax.value_and_grad(weighted, has_aux=True)(parameters, state, inputs, weighting)
        return outputs, gradients

    return jax.jit(swept)


def _array(value: Tensor) -> Array:
    return jnp.asarray(value.detach().numpy().copy())


def _tensor(value: Array) -> Tensor:
    return torch.from_numpy(numpy.array(value))
