"""What blocks send through L2: a few slots, told by the phase of a step in the lowest bit of every 64, or by a mark."""

from __future__ import annotations

import copy
import ctypes
import random
from collections.abc import Iterator

import pytest
import torch

import leporello as lp
from leporello.engine.gpu.division.geometry import Geometry
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.text.cuda_emitter import FUNCTIONS_PLACE, KernelText, library_text
from leporello.engine.gpu.text.memory import MARKED_SLOTS, PHASED_SLOTS
from tests.engine.gpu.kernels import kernels_of
from tests.gpu_on_host import SHAPES, compiled, library
from tests.nets.twins import quickly, thoroughly

GRID = "gpu-host-grid"
LENGTHS = (1, 2, 3, 4, 7)  # of two slots: fewer, as many, more, every slot twice, with a step left over
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of the norm; see test_on_host.py
HIDDEN = 48  # 16 units for each of three blocks: sums are fewer bytes than gates


def gradients(net: lp.Recurrent, inputs: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    """Of the inputs and of all parameters."""
    inputs = inputs.clone().requires_grad_()
    (net(inputs)[0] * weights.to(inputs.dtype)).sum().backward()
    found = [inputs.grad, *(parameter.grad for parameter in net.parameters())]
    net.zero_grad(set_to_none=True)
    return found


def networks(kind: str, dtype: torch.dtype, *engines: str) -> list[lp.Recurrent]:
    torch.manual_seed(0)
    cell = getattr(lp, kind)(16, HIDDEN).to(dtype)
    return [lp.Recurrent(copy.deepcopy(cell), engine=engine) for engine in engines]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", quickly(TOLERANCES, torch.float32, torch.bfloat16))
@pytest.mark.parametrize("kind", ["LSTM", *thoroughly("GRU", "PeepholeLSTM", "LayerNormLSTM")])
def test_gradients_of_every_length(kind: str, dtype: torch.dtype, length: int) -> None:
    net, by_torch = networks(kind, dtype, GRID, "stepwise")
    exact = lp.Recurrent(copy.deepcopy(net.cell).double(), engine="reference")
    inputs, weights = torch.randn(length, 19, 16).to(dtype), torch.randn(length, 19, HIDDEN)  # three groups of rows
    wanted = gradients(exact, inputs.double(), weights)
    found = gradients(net, inputs, weights), gradients(net, inputs, weights)
    for one, again, other, expected in zip(*found, gradients(by_torch, inputs, weights), wanted, strict=True):
        assert torch.equal(one, again)
        scale = expected.norm().clamp_min(1e-30)
        assert (one - expected).norm() / scale < max(TOLERANCES[dtype], (other - expected).norm() / scale)


@pytest.mark.parametrize("length", LENGTHS)
def test_launches_of_a_call_share_the_memory(length: int) -> None:
    (net,) = networks("LSTM", torch.bfloat16, GRID)
    inputs, weights = torch.randn(length, 8, 16).bfloat16(), torch.randn(length, 8, HIDDEN)
    found = gradients(net, inputs.repeat(1, 5, 1), weights.repeat(1, 5, 1))[0]  # five groups, two in a launch
    assert torch.equal(found, found[:, :8].repeat(1, 5, 1))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, *thoroughly(torch.float16, torch.float32)])
def test_nan_and_infinity_come_through(dtype: torch.dtype, value: float) -> None:
    inputs, weights = torch.randn(5, 9, 16).to(dtype), torch.randn(5, 9, HIDDEN)
    weights[4, 3, 7] = value
    found, expected = (gradients(net, inputs, weights)[0] for net in networks("LSTM", dtype, GRID, "gpu-host-cluster"))
    assert not expected[:, 3].isfinite().all()
    assert torch.equal(found.isfinite(), expected.isfinite())


def test_memory_is_that_of_a_few_steps() -> None:
    for kernel in kernels_of(lp.LSTM(16, HIDDEN), 16, torch.bfloat16):
        memory = KernelText(schedule_of(kernel), SHAPES[GRID]).memory
        assert bool(memory.scatters) == kernel.reverse
        found = memory.exchange_bytes(groups=5, groups_at_once=2)
        if kernel.reverse:  # 3 x 3 blocks send 16 units of 8 rows, in 2 bytes
            assert found == [PHASED_SLOTS * 2 * 9 * 16 * 8 * 2]
        else:
            assert found == [MARKED_SLOTS * 5 * HIDDEN * 8 * 2]
    (forward,) = (k for k in kernels_of(lp.LSTM(16, HIDDEN), 16, torch.float32) if not k.reverse)
    memory = KernelText(schedule_of(forward), SHAPES[GRID]).memory
    assert memory.exchange_bytes(5, 2) == [PHASED_SLOTS * 5 * HIDDEN * 8 * 4]
    clusters = KernelText(schedule_of(kernel), Geometry("cluster", 4, 2, 64)).memory
    assert clusters.exchange_bytes(5, 5) == [0]


def test_phases_leave_numbers_alone() -> None:
    """Every number of 16 bits: NaN and infinity remain, others are rounded, upwards as often as downwards."""
    names = (
        "BLOCKS",
        "TILES",
        "HEADS",
        "THREADS",
        "WORDS",
        "EXCHANGE",
        "EXACT",
        "ACCURATE",
    )
    text = "\n".join(f"#define {name} 1" for name in names)
    text += "\n" + library_text("host.h").replace(FUNCTIONS_PLACE, library_text("functions.cuh"))
    text += '\nextern "C" u32 sent(u32 word, u32 phase) { return with_phase(word, phase); }'
    text += '\nextern "C" u32 read(u32 word) { return without_phase(word); }\n'
    functions = library(compiled(text))
    functions.sent.restype = functions.read.restype = ctypes.c_uint32
    words = [functions.sent(word, phase) for phase in (0, 1) for word in range(1 << 16)]
    assert [word & 1 for word in words] == [0] * (1 << 16) + [1] * (1 << 16)
    found = [functions.read(word) for word in words]
    assert found[: 1 << 16] == found[1 << 16 :]  # whatever the phase
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16), torch.tensor(found[: 1 << 16]).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        before, after = (one.view(dtype) for one in bits)
        assert torch.equal(before.isnan(), after.isnan())
        assert torch.equal(before.isinf(), after.isinf())
        assert torch.equal(before.signbit(), after.signbit())
    rounded = bits[1].int() - bits[0].int()
    assert rounded.abs().max() == 1
    assert not rounded[::2].any()
    assert rounded[1::2].sum() == 0


def exchange(slots: int, blocks: int, steps: int, seed: int) -> list[list[set[int]]] | None:
    """Blocks that send, and then read, in any order; the steps that each has read. None if they wait for ever."""
    chance = random.Random(seed)
    memory = {(a, b, slot): (1, -1) for a in range(blocks) for b in range(blocks) for slot in range(slots)}
    read: list[list[set[int]]] = [[set() for _ in range(steps)] for _ in range(blocks)]

    def block(rank: int) -> Iterator[bool]:  # one access of memory at a time; whether it was a success
        for step in range(steps):
            slot, phase = step % slots, step // slots & 1
            for owner in chance.sample(range(blocks), blocks):
                memory[owner, rank, slot] = phase, step
                yield True
            missing = set(range(blocks))
            while missing:
                source = chance.choice(sorted(missing))
                found, sent = memory[rank, source, slot]
                if found == phase:
                    missing.remove(source)
                    read[rank][step].add(sent)
                yield found == phase

    running, without_progress = [block(rank) for rank in range(blocks)], 0
    while running:
        one = chance.choices(running, [1 + 50 * (i == seed % len(running)) for i in range(len(running))])[0]
        try:
            without_progress = 0 if next(one) else without_progress + 1
        except StopIteration:
            running.remove(one)
        if without_progress > 5000:
            return None
    return read


def test_two_slots_suffice_in_any_order() -> None:
    for seed in range(40):
        read = exchange(PHASED_SLOTS, blocks=3, steps=9, seed=seed)
        assert read == [[{step} for step in range(9)]] * 3
    assert any(exchange(1, blocks=3, steps=9, seed=seed) is None for seed in range(5))


def gathered(slots: int, seed: int, *, reads_marks: bool = True, blocks: int = 3, steps: int = 9) -> list[set[int]]:
    """For each step what blocks have read of it, where writes to different places arrive in any order."""
    chance = random.Random(seed)
    memory = dict.fromkeys(((rank, slot) for rank in range(blocks) for slot in range(slots)), -1)
    under_way: list[tuple[tuple[int, int], int]] = []
    read: list[set[int]] = [set() for _ in range(steps)]

    def block(rank: int) -> Iterator[None]:
        for step in range(steps):
            under_way.append(((rank, step % slots), step))
            if step >= 2:
                under_way.append(((rank, (step - 2) % slots), -1))
            for source in chance.sample(range(blocks), blocks):
                while memory[source, step % slots] == -1:
                    yield
                read[step].add(memory[source, step % slots])
            while reads_marks and step >= 2 and memory[rank, (step - 2) % slots] != -1:
                yield

    running, turns = [block(rank) for rank in range(blocks)], 0
    while running and turns < 20_000:
        turns += 1
        if under_way and chance.random() < 0.2:
            place, _ = chance.choice(under_way)
            first = next(i for i, (other, _) in enumerate(under_way) if other == place)  # of one place in their order
            memory.update([under_way.pop(first)])
        one = chance.choice(running)
        if next(one, "done") == "done":
            running.remove(one)
    return read


def test_four_slots_of_marks_suffice_in_any_order() -> None:
    right = [{step} for step in range(9)]
    assert all(gathered(MARKED_SLOTS, seed) == right for seed in range(60))
    assert any(gathered(3, seed) != right for seed in range(60))
    assert any(gathered(MARKED_SLOTS, seed, reads_marks=False) != right for seed in range(60))
