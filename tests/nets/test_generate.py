"""lp.generate: a network writes by itself."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError, StateMismatch
from leporello.loop.split import split
from leporello.nets import generate as module
from leporello.nets.generate import uniform_noise
from tests.nets.letters import NETS, SIZE, Letters, lively, plainly
from tests.nets.twins import FASTEST, crossed

TOKEN = torch.tensor([2, 0, 6])
STEPS = 13
ENGINES = ["reference", "stepwise", "cpu"]
CPU = torch.device("cpu")


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(steps: int = STEPS, batch: int = 3) -> Tensor:
    return uniform_noise(steps, batch, SIZE, torch.float64, CPU, seeded())


def network(name: str = "LSTM", **options: Any) -> lp.Recurrent:
    return lp.Recurrent(lively(NETS[name]()), **options)


@pytest.mark.parametrize(
    ("name", "engine"), crossed(NETS, cpu=NETS, stepwise=("LSTM", "Jordan"), reference=("GRU", "Jordan"))
)
def test_every_engine_draws_what_a_plain_loop_draws(name: str, engine: str) -> None:
    net = network(name, engine=engine)
    tokens, state = lp.generate(net, TOKEN, steps=STEPS, temperature=0.8, generator=seeded())
    wanted, after = plainly(net.cell, TOKEN, noise(), temperature=0.8, leaf=net.feedback_leaf())
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(state, after)


@pytest.mark.parametrize(
    ("engine", "asked"),
    [
        pytest.param("stepwise", {"top_k": 3, "temperature": 0.7}, marks=pytest.mark.slow),
        ("stepwise", {"top_p": 0.6}),
        *((engine, {"top_k": 4, "top_p": 0.8}) for engine in ENGINES),
    ],
)
def test_every_engine_leaves_what_a_sort_leaves(engine: str, asked: dict[str, Any]) -> None:
    net = network("GRU", engine=engine)
    tokens, _ = lp.generate(net, TOKEN, steps=STEPS, generator=seeded(), **asked)
    assert torch.equal(tokens, plainly(net.cell, TOKEN, noise(), **asked)[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_temperature_zero_takes_the_most_probable(engine: str) -> None:
    net = network("GRU", engine=engine)
    tokens, _ = lp.generate(net, TOKEN, steps=STEPS, temperature=0, top_k=3)
    assert torch.equal(tokens, plainly(net.cell, TOKEN, noise(), temperature=0)[0])


def test_one_most_probable_token_is_the_greedy_one() -> None:
    net = network("GRU")
    greedy, _ = lp.generate(net, TOKEN, steps=STEPS, temperature=0)
    assert torch.equal(lp.generate(net, TOKEN, steps=STEPS, top_k=1)[0], greedy)
    assert torch.equal(lp.generate(net, TOKEN, steps=STEPS, top_p=1e-6)[0], greedy)


@pytest.mark.parametrize("engine", FASTEST)
def test_in_pieces_of_any_size_it_is_the_same_text(engine: str) -> None:
    net = network("Stack", engine=engine)
    whole, last = lp.generate(net, TOKEN, steps=STEPS, generator=seeded(), top_k=5)
    generator, token, state, pieces = seeded(), TOKEN, None, []
    for steps in (1, 5, 1, 6):
        piece, state = lp.generate(net, token, state, steps=steps, generator=generator, top_k=5)
        token = piece[-1]
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), whole)
    torch.testing.assert_close(state, last)


def test_noise_that_is_drawn_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("GRU")
    whole, _ = lp.generate(net, TOKEN, steps=STEPS, generator=seeded())
    monkeypatch.setattr(module, "MAX_NOISE_NUMBERS", 4 * 3 * SIZE)
    tokens, _ = lp.generate(net, TOKEN, steps=STEPS, generator=seeded())
    assert torch.equal(tokens, whole)


def test_without_a_generator_the_numbers_are_torchs_own() -> None:
    net = network("GRU")
    torch.manual_seed(3)
    first, _ = lp.generate(net, TOKEN, steps=STEPS)
    second, _ = lp.generate(net, TOKEN, steps=STEPS)
    torch.manual_seed(3)
    assert torch.equal(lp.generate(net, TOKEN, steps=STEPS)[0], first)
    assert not torch.equal(first, second)


class Memoryless(lp.Cell):
    """The same logits whatever it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.3, -1.0, 2.0, 0.0, 1.1, -2.0, 0.6]))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.logits.expand(x.shape[0], -1), state


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_letters_are_as_frequent_as_they_are_probable(temperature: float) -> None:
    net, count = lp.Recurrent(Memoryless()), 30_000
    tokens, _ = lp.generate(net, TOKEN, steps=count // 3, temperature=temperature, generator=seeded())
    wanted = (net.cell.logits.detach().double() / temperature).softmax(0) * count
    found = torch.bincount(tokens.flatten(), minlength=SIZE)
    chi_square = ((found - wanted) ** 2 / wanted).sum()
    assert chi_square < 22.5  # 6 degrees of freedom: exceeded once in a thousand seeds


def test_another_temperature_k_or_p_makes_no_other_plan() -> None:
    net = network("GRU")
    lp.generate(net, TOKEN, steps=STEPS, temperature=0.5, top_k=3, top_p=0.5)
    texts = {
        tuple(lp.generate(net, TOKEN, steps=STEPS, generator=seeded(), **asked)[0].flatten().tolist())
        for asked in ({"temperature": 0.9, "top_k": 2, "top_p": 0.4}, {"temperature": 1.4, "top_k": 5, "top_p": 0.9})
    }
    assert len(texts) == 2
    assert len(net._plan_cache.calls) == len(net._plan_cache.loops) == 1


def test_numbers_that_leave_everything_ask_for_nothing() -> None:
    net = network("GRU")
    lp.generate(net, TOKEN, steps=STEPS)
    lp.generate(net, TOKEN, steps=STEPS, top_k=SIZE, top_p=1)
    assert len(net._plan_cache.calls) == 1


def test_parameters_are_read_at_each_call() -> None:
    net = network("GRU", engine="stepwise")
    lp.generate(net, TOKEN, steps=STEPS)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(-0.7)
    tokens, _ = lp.generate(net, TOKEN, steps=STEPS, generator=seeded())
    assert torch.equal(tokens, plainly(net.cell, TOKEN, noise())[0])


def test_tables_are_made_where_many_tokens_are_drawn() -> None:
    net = network("GRU")
    lp.generate(net, TOKEN[:1], steps=SIZE)
    lp.generate(net, TOKEN[:1], steps=SIZE - 1)
    many, few = (one.plan.loop for one in net._plan_cache.calls.values())
    products = [name for stage in split(many).stages if stage.kind != "once" for name in stage.products]
    assert products == ["inner.W", "head.weight"]
    assert "inner.U" in split(few).inside.products


def test_single_precision_draws_the_same_text_on_every_engine() -> None:
    net = lp.Recurrent(lively(NETS["LSTM"]()).float())
    texts = []
    for engine in ENGINES:
        net.engine = engine
        texts.append(lp.generate(net, TOKEN, steps=STEPS, top_k=4, generator=seeded())[0])
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


def test_a_prompt_is_read_first() -> None:
    net = network("LSTM")
    prompt = torch.tensor([[1], [4], [2]])
    with torch.no_grad():
        outputs, _ = net(prompt)
        _, state = net(prompt[:-1])
    tokens, _ = lp.generate(net, prompt[-1], state, steps=1, temperature=0)
    assert torch.equal(tokens[0], outputs[-1].argmax(-1))


def test_with_batch_first_tokens_are_batch_first() -> None:
    net = network("GRU")
    tokens, _ = lp.generate(net, TOKEN, steps=STEPS, generator=seeded())
    net.batch_first = True
    assert torch.equal(lp.generate(net, TOKEN, steps=STEPS, generator=seeded())[0], tokens.T)


def test_a_feedback_leaf_that_cannot_hold_a_token_is_fed_as_the_cell_says() -> None:
    net = lp.Recurrent(lively(Letters(lp.Jordan(3, 9, 5), 3)))
    tokens, state = lp.generate(net, TOKEN, steps=STEPS, generator=seeded())
    wanted, after = plainly(net.cell, TOKEN, noise())
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(state, after)


def test_a_step_in_which_rows_meet_is_written_by_reference() -> None:
    class Meeting(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=SIZE)
            self.E = nn.Embedding(SIZE, SIZE)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.E(x) + h)
            return h - h.mean(0), h

    net = lp.Recurrent(Meeting().double())
    tokens, _ = lp.generate(net, TOKEN, steps=3, generator=seeded())
    assert torch.equal(tokens, plainly(net.cell, TOKEN, noise(3))[0])


def test_no_gradient_is_recorded() -> None:
    net = network("GRU")
    state = torch.zeros(3, 9, dtype=torch.float64, requires_grad=True)
    _, after = lp.generate(net, TOKEN, state, steps=2)
    assert not after.requires_grad


def test_copies_and_pickles_write_too() -> None:
    net = network("GRU")
    tokens, _ = lp.generate(net, TOKEN, steps=STEPS, generator=seeded())
    copied = copy.deepcopy(net)
    assert not copied._plan_cache.calls
    assert torch.equal(lp.generate(copied, TOKEN, steps=STEPS, generator=seeded())[0], tokens)
    assert not pickle.loads(pickle.dumps(net._plan_cache)).calls


# ---- what is refused


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"temperature": -0.1}, "'temperature' is out of range"),
        ({"temperature": float("nan")}, "'temperature' is out of range"),
        ({"top_k": 0}, "'top_k' is out of range"),
        ({"top_k": 2.5}, "'top_k' is out of range"),
        ({"top_p": 0.0}, "'top_p' is out of range"),
        ({"top_p": 1.1}, "'top_p' is out of range"),
        ({"steps": 0}, "'steps' is no length"),
    ],
)
def test_a_number_out_of_range_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        lp.generate(network("GRU"), TOKEN, **{"steps": 3, **asked})


@pytest.mark.parametrize("token", [torch.tensor([0, SIZE]), torch.tensor([-1])])
def test_a_token_that_does_not_exist_is_refused(token: Tensor) -> None:
    with pytest.raises(ArgumentError, match="a class that does not exist"):
        lp.generate(network("GRU"), token, steps=3)


@pytest.mark.parametrize("token", [3, torch.tensor(3), torch.zeros(2), torch.zeros(2, 1, dtype=torch.int64)])
def test_a_token_that_is_no_class_a_row_is_refused(token: Any) -> None:
    with pytest.raises(ArgumentError, match="not one class a row"):
        lp.generate(network("GRU"), token, steps=3)


def test_a_state_of_another_batch_is_refused() -> None:
    with pytest.raises(StateMismatch, match="wrong shape"):
        lp.generate(network("GRU"), TOKEN, torch.zeros(2, 9, dtype=torch.float64), steps=3)


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'net' is no network"):
        lp.generate(NETS["GRU"](), TOKEN, steps=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(spoilt: float, engine: str) -> None:
    net = network("GRU", engine=engine)
    with torch.no_grad():
        net.cell.head.bias[2] = spoilt
    with pytest.raises(ArgumentError, match="not finite"):
        lp.generate(net, TOKEN, steps=3)
    with pytest.raises(ArgumentError, match="not finite"):
        lp.generate(net, TOKEN, steps=3, temperature=0)


def test_a_network_of_two_outputs_is_refused() -> None:
    class Own(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)

        def forward(self, x: Tensor, h: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            return (h, h), h + x.unsqueeze(-1)

    with pytest.raises(ArgumentError, match="one row of logits"):
        lp.generate(lp.Recurrent(Own()), TOKEN, steps=3)
