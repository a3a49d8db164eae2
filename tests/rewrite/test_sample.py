"""sample: the next input is drawn from the output of this step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError
from leporello.rewrite import sample
from leporello.rewrite.sample import choose, limit
from leporello.view.folded_loop import loop_from
from tests.nets.letters import NETS, SIZE, Letters, left, lively, plainly
from tests.rewrite.running import run

BATCH, STEPS = 3, 11
TOKEN = torch.tensor([2, 0, 6])


def noise() -> Tensor:
    return torch.rand(STEPS, BATCH, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def folded(name: str = "LSTM") -> tuple[lp.Cell, lp.Loop]:
    cell = lively(NETS[name]())
    return cell, lp.fold(cell, TOKEN)


def beginning(cell: lp.Cell) -> dict[str, Tensor]:
    leaves = torch.utils._pytree.tree_leaves(cell.initial_state(BATCH))
    return {"call.token": TOKEN, **dict(zip(cell.state_names(), leaves, strict=True))}


def numbers(**given: float) -> dict[str, Tensor]:
    return {f"call.{name}": torch.tensor(value, dtype=torch.float64) for name, value in given.items()}


def test_one_loop_draws_what_a_plain_loop_draws() -> None:
    cell, loop = folded()
    own = sample(loop, top_k=True, top_p=True)
    asked = {**own.parameters, **numbers(temperature=0.7, k=4, p=0.8)}
    found = run(own, {**beginning(cell), "call.noise": noise()}, asked)  # type: ignore[arg-type]
    tokens, state = plainly(cell, TOKEN, noise(), temperature=0.7, top_k=4, top_p=0.8)
    assert torch.equal(found["token"], tokens)
    assert torch.equal(found["final call.token"], tokens[-1])
    torch.testing.assert_close(found["final c"], state.c)


def test_a_forced_leaf_is_handed_the_row_of_the_token() -> None:
    cell, loop = folded("Jordan")
    own = sample(loop, leaf="o")
    found = run(own, {**beginning(cell), "call.noise": noise()}, {**own.parameters, **numbers(temperature=1.0)})  # type: ignore[arg-type]
    tokens, _ = plainly(cell, TOKEN, noise(), leaf="o")
    assert torch.equal(found["token"], tokens)
    assert torch.equal(found["final o"], nn.functional.one_hot(tokens[-1], SIZE).double())


def test_logits_leave_the_loop_and_logarithms_of_the_noise_do_not_wait() -> None:
    _, loop = folded()
    own = sample(loop)
    assert [port.name for port in own.outputs] == ["token", "call.token", "h", "c"]
    split = own.split()
    assert "aten.log" in str(split.before.graph)
    assert "aten.log" not in str(split.inside.graph)
    assert split.inside.products == ["inner.U", "inner.W", "head.weight"]


def test_a_greedy_loop_reads_no_noise() -> None:
    _, loop = folded()
    assert [port.name for port in sample(loop, greedy=True, top_k=True).inputs if port.name.startswith("call.")] == [
        "call.token"
    ]


def test_a_sampled_loop_prints_unfolds_and_is_read_back() -> None:
    cell, loop = folded()
    own = sample(loop)
    assert "token" in str(own)
    assert "token(t)" in str(own.unfold(3))
    assert loop_from(own.text()).text() == own.text()
    state = (TOKEN, cell.initial_state(BATCH))
    given = {**numbers(temperature=1.0), "call.noise": noise()[:3]}
    tokens, (last, _) = own.unfold(3).run(None, state, given=given)
    assert torch.equal(tokens, plainly(cell, TOKEN, noise()[:3])[0])
    assert torch.equal(last, tokens[-1])


def test_a_loop_of_rows_with_features_is_refused() -> None:
    loop = lp.fold(lp.GRU(3, 4), torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match="one class a row"):
        sample(loop)


def test_a_loop_with_two_outputs_is_refused() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (h, h + 1), h * (1 + x.unsqueeze(-1))

    with pytest.raises(ArgumentError, match="one row of logits"):
        sample(lp.fold(step, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4)))


def test_a_leaf_of_another_size_is_refused() -> None:
    _, loop = folded()
    with pytest.raises(ArgumentError, match="cannot hold a token"):
        sample(loop, leaf="h")


# ---- the choice of a token

ROW = st.lists(st.integers(-4000, 4000), min_size=1, max_size=20)  # in thousandths: exact ties are frequent enough


def rows(thousandths: list[int], dtype: torch.dtype) -> Tensor:
    return (torch.tensor([thousandths], dtype=torch.float64) / 1000).to(dtype)


@given(ROW, st.integers(1, 20), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=100, deadline=None)
def test_the_limit_of_top_k_is_the_one_of_a_sort(row: list[int], k: int, dtype: torch.dtype) -> None:
    scores = rows(row, dtype)
    scores = scores - scores.max()
    found = scores >= limit(scores, torch.ones_like(scores), torch.tensor(float(k), dtype=dtype))
    assert torch.equal(found, left(scores, 1.0, k, None))


@given(ROW, st.floats(0.01, 0.99), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=100, deadline=None)
def test_top_p_leaves_the_smallest_set_that_reaches_it(row: list[int], p: float, dtype: torch.dtype) -> None:
    scores = rows(row, dtype)
    scores = scores - scores.max()
    weights = scores.exp()
    kept = scores >= limit(scores, weights, p * weights.sum(-1, keepdim=True))
    share = weights.double() / weights.double().sum()
    least = scores[kept].min()
    rounded = 1e-5 if dtype == torch.float32 else 1e-12
    assert share[kept].sum() >= p - rounded
    assert share[kept & (scores > least)].sum() < p + rounded
    assert bool(kept[scores >= least].all())


@given(ROW, st.integers(1, 8), st.floats(0.05, 0.95), st.floats(0.1, 3.0), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_choice_is_that_of_the_sorting_twin(row: list[int], k: int, p: float, temperature: float, seed: int) -> None:
    logits = rows(row, torch.float64)
    own = torch.rand(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = choose(logits, own, *(torch.tensor(value, dtype=torch.float64) for value in (temperature, k, p)))
    shares = (logits / temperature).masked_fill(~left(logits, temperature, k, None), -torch.inf).softmax(-1)
    if (shares.sort(-1, descending=True).values.cumsum(-1) - p).abs().min() > 1e-9:  # else rounding decides
        scores = logits / temperature - (-own.log()).log()
        assert found == scores.masked_fill(~left(logits, temperature, k, p), -torch.inf).argmax(-1)


def test_what_is_masked_by_minus_infinity_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, -torch.inf, -1.0, -torch.inf]]).expand(500, 4)
    one, k = torch.tensor(1.0), torch.tensor(3.0)
    drawn = choose(logits, torch.rand(500, 4), one, k, torch.tensor(0.999))
    assert set(drawn.tolist()) == {0, 2}


def test_a_temperature_near_zero_takes_the_best() -> None:
    logits = torch.randn(50, 9) * 30
    drawn = choose(logits, torch.rand(50, 9), torch.tensor(1e-38))
    assert torch.equal(drawn, logits.argmax(-1))


def test_a_cell_without_memory_has_the_token_as_its_only_state() -> None:
    loop = sample(lp.fold(Letters(lp.Perceptron(SIZE, 4, 5), SIZE, "one_hot"), TOKEN))
    assert list(loop.delays) == ["call.token"]
    assert len(loop.split().insides) == 1
