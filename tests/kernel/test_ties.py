"""Of equal elements every engine takes the one that torch takes on the CPU."""

import pytest
import torch

import leporello as lp
from tests.nets.twins import ENGINES, thoroughly

CHOICES = {
    "topk": lambda h: h.topk(3, 1).indices,
    "smallest": lambda h: h.topk(4, 1, largest=False).indices,
    "all in order": lambda h: h.topk(20, 1).indices,
    "one of many": lambda h: h.repeat(1, 5).topk(1, 1).indices,
    "another axis": lambda h: h.view(-1, 4, 5).topk(2, 1).indices.flatten(1),
    "not in order": lambda h: h.topk(3, 1, sorted=False).indices.sort(1).values,
    "sort": lambda h: h.sort(1).indices,
    "sort, descending": lambda h: h.sort(1, descending=True).indices,
    "stable": lambda h: h.sort(dim=1, stable=True).indices,
    "stable, descending": lambda h: h.sort(dim=1, descending=True, stable=True).indices,
    "argsort": lambda h: h.argsort(1),
    "argmax": lambda h: h.argmax(1, keepdim=True),
    "argmin": lambda h: h.argmin(1, keepdim=True),
    "max": lambda h: h.max(1, keepdim=True).indices,
    "min": lambda h: h.min(1, keepdim=True).indices,
    "median": lambda h: h.median(1, keepdim=True).indices,
    "kthvalue": lambda h: h.kthvalue(3, 1, keepdim=True).indices,
    "mode": lambda h: h.mode(1, keepdim=True).indices,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CHOICES)
def test_equal_elements_are_chosen_as_torch_chooses_them(name, engine):
    def step(x, h):
        chosen = CHOICES[name](x + 0 * h)
        return chosen, h + 0.0 * chosen.sum(1, keepdim=True)

    torch.manual_seed(2)
    levels = torch.randint(0, 3, (9, 4, 20)).double()
    levels[0] = 0
    levels[1][torch.rand(4, 20) < 0.2] = float("nan")
    engine = "stepwise" if name in ("median", "kthvalue", "mode", "not in order") else engine
    outputs, _ = lp.Recurrent(step, engine=engine)(levels, torch.zeros(4, 20, dtype=torch.float64))
    assert torch.equal(outputs, torch.stack([CHOICES[name](x) for x in levels]))


@pytest.mark.parametrize("size", [3, 17, 33, *thoroughly(1, 2, 4, 7, 16, 64)])
@pytest.mark.parametrize("levels", [1, 3, *thoroughly(2, 1000)])
def test_the_first_of_any_number_of_elements(size, levels):
    few = {1, 2, size // 2, size - 1, size} & set(range(1, size + 1))

    def step(x, h):
        return [x.topk(count, 1, largest).indices for count in few for largest in (True, False)], h + x

    torch.manual_seed(size)
    x = torch.randint(0, levels, (30, 3, size)).float()
    outputs, _ = lp.Recurrent(step, engine="cpu")(x, torch.zeros(3, size))
    wanted = [torch.stack(one) for one in zip(*[step(one, one)[0] for one in x], strict=True)]
    assert all(map(torch.equal, outputs, wanted))
