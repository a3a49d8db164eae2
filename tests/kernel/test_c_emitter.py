"""A built kernel gives what the interpreter gives; types that C is not written for are refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import leporello as lp
from leporello.engine.cpu.c_emitter import c_source_of
from leporello.kernel.description import Kernel, Product, Reduction
from leporello.kernel.interpreter import run
from leporello.rewrite import differentiate
from tests.cells.examples import EXAMPLES, KINDS, shaken
from tests.close import assert_close
from tests.kernel.built import WITH_KERNELS, run_built
from tests.kernel.lowered import Inside, insides_of, random_input, tensors_of, values_of_steps

STEPS, BATCH = 3, 3
VECTOR_BYTES = 32


def insides(name: str, dtype: torch.dtype, numbers: torch.Generator) -> list[tuple[Inside, dict[str, object]]]:
    """Of both sweeps of an example, with what their kernels are passed."""
    cell = shaken(EXAMPLES[name]()).to(dtype)
    loop = lp.Recurrent(cell).fold(torch.zeros(STEPS, BATCH, cell.inputs, dtype=dtype))
    cases: list[tuple[Inside, dict[str, object]]] = []
    for sweep in (loop, differentiate(loop)):
        split = sweep.split()
        inputs = [random_input(port, split.loop, STEPS, BATCH, numbers) for port in split.loop.inputs]
        with torch.no_grad():
            values = values_of_steps(split.loop, inputs, STEPS, BATCH)
        cases += [(inside, tensors_of(inside, values, sweep.reverse)) for inside in insides_of(split)]
    return cases


@pytest.mark.kernels
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("engine", WITH_KERNELS)
def test_the_kernels_of_every_cell_give_what_the_interpreter_gives(engine: str, name: str) -> None:
    numbers = torch.Generator().manual_seed(0)
    dtype = torch.float32 if name in ("GRU", "LayerNormLSTM") else torch.float64
    for inside, passed in insides(name, dtype, numbers):
        states, writes = run_built(engine, inside.kernel, **passed, steps=STEPS, batch=BATCH)  # type: ignore[arg-type]
        wanted_states, wanted_writes = run(inside.kernel, **passed, steps=STEPS, batch=BATCH)  # type: ignore[arg-type]
        found = {f"{number}": value for number, value in enumerate((*states, *writes))}
        wanted = {f"{number}": value for number, value in enumerate((*wanted_states, *wanted_writes))}
        assert_close(found, wanted, f"{inside.kernel.text()}\nresult")


def kernel_with(kind: type) -> Kernel:
    """A kernel that has a block of this kind."""
    cases = insides("LayerNormLSTM", torch.float64, torch.Generator().manual_seed(0))
    kernels = [inside.kernel for inside, _ in cases]
    return next(kernel for kernel in kernels if any(isinstance(block, kind) for block in kernel.blocks))


def test_storage_in_another_type_than_arithmetic_is_refused_by_name() -> None:
    kernel = kernel_with(Product)
    state = replace(kernel.buffers["state"][0], dtype=torch.bfloat16)
    changed = replace(kernel, buffers={**kernel.buffers, "state": (state, *kernel.buffers["state"][1:])})
    with pytest.raises(lp.errors.EngineRefusal, match=r"stored as bfloat16 and computed in float64 \(.*h.*\)"):
        c_source_of(changed, VECTOR_BYTES)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (Product, {"accumulation": torch.float32}, "products in float64 added in float32"),
        (Product, {"arithmetic": torch.bfloat16}, "products in bfloat16 added in float64"),
        (Reduction, {"accumulation": torch.float32}, "sum accumulated in float32"),
    ],
)
def test_accumulation_in_another_type_is_refused_by_name(kind: type, fields: dict[str, object], words: str) -> None:
    kernel = kernel_with(kind)
    blocks = tuple(replace(block, **fields) if isinstance(block, kind) else block for block in kernel.blocks)
    with pytest.raises(lp.errors.EngineRefusal, match=words):
        c_source_of(replace(kernel, blocks=blocks), VECTOR_BYTES)


def test_the_same_kernel_has_the_same_text() -> None:
    one, other = (kernel_with(Product) for _ in range(2))
    assert one == other
    assert c_source_of(one, VECTOR_BYTES) == c_source_of(other, VECTOR_BYTES)
