"""Forward hooks on modules of a step see the values of every step; what they would change is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import UntraceableStep
from tests.errors.said import said
from tests.nets.twins import ENGINES, close, gradients, normal, shaken, somewhere


class Leaky(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.9 * h + 0.1 * torch.tanh(self.U(x) + self.W(h))
        return h, h


Seen = list[tuple[Any, ...]]


def watched(module: nn.Module, seen: Seen, name: str) -> list[Any]:
    return [
        module.register_forward_pre_hook(lambda module, given: seen.append((name, "before", given))),
        module.register_forward_hook(lambda module, given, made: seen.append((name, "after", given, made))),
    ]


def by_hand(cell: lp.Cell, x: Tensor, state: Any = None, lengths: Any = None) -> Seen:
    seen: Seen = []
    handles = [handle for name in ("", "U", "W") for handle in watched(cell.get_submodule(name), seen, name)]
    for step in x:
        _, state = cell(step, state)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["call", "batch_first", "step", "summary"])
def test_hooks_in_the_step_are_called_with_the_values_of_every_step(form: str, engine: str) -> None:
    cell, x = shaken(Leaky()), normal(5, 3, 3)
    wanted = by_hand(cell, x, cell.initial_state(3))
    net = lp.Recurrent(cell, engine=engine, batch_first=form == "batch_first")
    before = lp.Recurrent(cell)(x)
    seen: Seen = []
    handles = [handle for name in ("", "U", "W") for handle in watched(cell.get_submodule(name), seen, name)]
    if form == "step":
        state = None
        for row in x:
            got, state = net.step(row, state)
        close(got, before[0][-1])
    elif form == "summary":
        close(lp.Summary(cell, nn.Identity(), engine=engine)(x), (before[0][-1], before[1]))
    else:
        got = net(x.transpose(0, 1) if net.batch_first else x)
        close((got[0].transpose(0, 1) if net.batch_first else got[0], got[1]), before)
    assert [call[:2] for call in seen] == [call[:2] for call in wanted]
    for call, other in zip(seen, wanted, strict=True):
        close(call[2:], other[2:])
    for handle in handles:
        handle.remove()
    close(net(x.transpose(0, 1) if net.batch_first else x)[1], before[1])  # as if there had been none
    assert len(seen) == len(wanted)


def test_the_gradient_passes_what_a_hook_has_seen() -> None:
    cell, x = shaken(Leaky()), normal(5, 3, 3, grad=True)
    seen: list[Tensor] = []
    handle = cell.W.register_forward_hook(lambda module, given, made: seen.append(made))
    net = lp.Recurrent(cell)
    outputs, _ = net(x)
    penalty = sum(value.square().sum() for value in seen)
    got = gradients(outputs.sum() + penalty, [x, *cell.parameters()])
    handle.remove()
    (outputs, values), _ = lp.Recurrent(lp.record(cell))(x)
    initial = torch.zeros(1, 3, 4, dtype=x.dtype)
    behind = torch.cat([initial, values["h"][:-1]]) @ cell.W.weight.T
    close(got, gradients(outputs.sum() + behind.square().sum(), [x, *cell.parameters()]))


def test_lengths_resets_and_forcing_are_those_of_the_call() -> None:
    cell = shaken(lp.Jordan(3, 4, 2))
    x, targets, resets = normal(5, 3, 3), normal(5, 3, 2, seed=3), somewhere(5, 3)
    net, seen = lp.Recurrent(cell), []
    arguments = {"lengths": [5, 1, 3], "resets": resets, "targets": targets, "forcing": somewhere(5, 3, seed=9)}
    wanted = net(x, **arguments)
    cell.register_forward_hook(lambda module, given, made: seen.append(made[0]))
    got = net(x, **arguments)
    close(got, wanted)
    close(torch.stack(seen), wanted[0])


def test_a_module_that_runs_twice_in_a_step_is_seen_twice() -> None:
    class Twice(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Linear(3, 3)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.W(x) + self.W(h))
            return h, h

    cell, seen = shaken(Twice()), []
    cell.W.register_forward_hook(lambda module, given, made: seen.append(given[0]))
    x = normal(4, 2, 3)
    lp.Recurrent(cell)(x)
    close(torch.stack(seen[::2]), x)
    assert len(seen) == 8


def test_keyword_arguments_plain_values_and_what_all_rows_share_are_seen() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, weight: Tensor, *, times: int, places: tuple[int, ...]) -> Tensor:
            return x @ weight * times

    class Cell(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W, self.scaled = nn.Parameter(torch.randn(3, 3)), Scaled()

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + self.scaled(h, self.W, times=2, places=(1, 2)))
            return h, h

    cell, seen = shaken(Cell()), []
    cell.scaled.register_forward_hook(
        lambda module, given, options, made: seen.append((given, options, made)), with_kwargs=True
    )
    lp.Recurrent(cell)(normal(4, 2, 3))
    assert [options for _, options, _ in seen] == [{"times": 2, "places": (1, 2)}] * 4
    close(seen[3][0][1], cell.W)


def test_a_plain_module_and_a_state_with_the_batch_elsewhere_have_hooks_too() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 4, num_layers=2)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            output, h = self.gru(x.unsqueeze(0), h)
            return output[0], h

    cell, seen = shaken(Plain()), []
    net, x, h = lp.Recurrent(cell, batch_axis=1), normal(5, 3, 3), normal(2, 3, 4, seed=2)
    wanted = net(x, h)
    cell.register_forward_hook(lambda module, given, made: seen.append((*given, made[1])))
    close(net(x, h), wanted)
    close(torch.stack([given for given, *_ in seen]), x)
    assert torch.equal(seen[0][1], h)
    assert torch.equal(seen[-1][2], wanted[1])


def test_a_value_without_an_axis_of_rows_is_warned_of_by_name() -> None:
    class Turned(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.act = nn.Tanh()

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.act((x + h).flatten()).view(h.shape)
            return h, h

    cell, seen = Turned(), []
    wanted = lp.Recurrent(cell)(normal(4, 2, 3))
    cell.act.register_forward_hook(lambda module, given, made: seen.append(made))
    with pytest.warns(UserWarning, match=r"the forward hook on 'act' \(Tanh\) of Turned .* is not called"):
        got = lp.Recurrent(cell)(normal(4, 2, 3))
    close(got, wanted)
    assert not seen


def test_a_hook_that_removes_itself_is_called_once() -> None:
    cell, seen = Leaky(), []

    def once(module: nn.Module, given: Any, made: Any) -> None:
        seen.append(made)
        handle.remove()

    handle = cell.U.register_forward_hook(once)
    lp.Recurrent(cell)(torch.zeros(4, 2, 3))
    assert len(seen) == 1


def counts(module: nn.Module, *values: Any) -> None:
    module.in_features += 1


CHANGING = {
    "returns": (lambda module, given, made: 2 * made, "returns a value"),
    "writes": (lambda module, given, made: (made.mul_(2), None)[1], "writes to a value in place"),
    "sets": (counts, "sets an attribute or a parameter"),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_hook_that_would_change_the_step_is_refused_by_name(name: str) -> None:
    hook, words = CHANGING[name]
    cell = Leaky()
    cell.U.register_forward_hook(hook)
    with torch.no_grad():
        said(UntraceableStep, lambda: lp.Recurrent(cell)(torch.zeros(4, 2, 3)), words, "Leaky", "lp.record")


def test_weight_norm_by_hooks_is_refused() -> None:
    cell = Leaky()
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(cell.W)
    said(UntraceableStep, lambda: lp.Recurrent(cell)(torch.zeros(4, 2, 3)), "'W' (Linear)", "parametrizations")


@pytest.mark.slow
def test_torchinfo_lists_what_is_inside_the_step() -> None:
    torchinfo = pytest.importorskip("torchinfo")
    net = lp.Recurrent(lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 4)))
    text = str(torchinfo.summary(net, input_data=torch.zeros(5, 2, 3), depth=4, verbose=0))
    for line in ("Recurrent", "LSTM: 3-1", "GRU: 3-2", "Total params: 264"):
        assert line in text
    assert not net.cell.cells[0]._forward_hooks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_fit_of_lightning_begins_with_its_summary() -> None:
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = lp.Summary(Leaky(), nn.Linear(4, 1))
            self.example_input_array = torch.zeros(5, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)[0]

        def training_step(self, batch: Any, index: int) -> Tensor:
            return self(batch[0].transpose(0, 1)).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model, data = Model(), torch.utils.data.TensorDataset(torch.randn(12, 5, 3))
    before = model.net.head.weight.clone()
    callbacks = [lightning.pytorch.callbacks.ModelSummary(max_depth=-1)]
    trainer = lightning.Trainer(
        max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=callbacks
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    assert trainer.global_step == 3
    assert not torch.equal(model.net.head.weight, before)
