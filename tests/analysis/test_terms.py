"""`terms`: dh(t)/dw as a sum over steps: the closed form of a linear net, and the whole of every cell."""

from __future__ import annotations

import pytest
import torch

from leporello.analysis import terms
from tests.analysis.nets import WITH_STATE, example, linear, normal, orthogonal, walked


def test_a_linear_net_has_the_powers_of_its_matrix() -> None:
    """dh(t)/dW[a, b] = sum over i of W^(t - i) e_a h(i - 1)[b]; with respect to U the same with x(i)."""
    net, inputs, t = linear(0.9 * orthogonal(4)), normal(9, 2, 3), 7
    found = terms(net, inputs, t, row=1)
    W = net.cell.W.detach()
    _, states = walked(net, inputs)
    for i in range(1, t + 1):
        power = torch.linalg.matrix_power(W, t - i)
        of_w = torch.einsum("na,b->nab", power, states[i - 1][1].detach())
        of_u = torch.einsum("na,b->nab", power, inputs[i - 1, 1])
        torch.testing.assert_close(found.terms["W"][i - 1], of_w, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.terms["U"][i - 1], of_u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", WITH_STATE)
def test_the_terms_of_every_cell_sum_to_the_whole(name: str) -> None:
    net, inputs = example(name), normal(5, 2, 3)
    draws = net.draw(inputs)
    found = terms(net, inputs, 4, draws=draws)
    assert found.error < 1e-12
    _, states = walked(net, inputs[:4], draws)
    final = states[4] if isinstance(states[4], tuple) else (states[4],)
    after = torch.cat([leaf.flatten(1) for leaf in final], 1)[0]
    for name, parameter in net.cell.named_parameters():
        if name in found.whole and after.requires_grad:
            rows = [torch.autograd.grad(n, parameter, retain_graph=True, materialize_grads=True)[0] for n in after]
            torch.testing.assert_close(found.whole[name], torch.stack(rows), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(found.terms[name].sum(0), torch.stack(rows), rtol=1e-9, atol=1e-12)


def test_what_is_missing_falls_to_nothing() -> None:
    found = terms(linear(0.5 * orthogonal(4)), normal(20, 1, 3), 20, parameters=["U"])
    assert found.cut[0].item() == pytest.approx(1)
    assert found.cut[-1] < 1e-14
    assert list(found.terms) == ["U"]
    last = found.terms["U"][-5:].sum(0)
    wanted = (found.whole["U"] - last).norm() / found.whole["U"].norm()
    assert found.cut[5].item() == pytest.approx(wanted.item(), rel=1e-9)
    torch.testing.assert_close(found.sizes, found.terms["U"].flatten(1).norm(dim=1))


def test_the_first_step_has_one_term() -> None:
    found = terms(example("GRU"), normal(3, 1, 3), 1)
    assert {name: len(value) for name, value in found.terms.items()} == dict.fromkeys(found.whole, 1)
    assert found.verdict == "it takes all 1 terms of dh(1)/dw to come within 1% of the whole"


def test_verdicts_tell_how_many_terms_are_enough() -> None:
    found = terms(linear(0.5 * orthogonal(4)), normal(40, 1, 3), 40, parameters=["W"])
    enough = int((found.cut <= 0.01).nonzero()[0])
    assert 3 < enough < 12
    assert found.verdict == f"the last {enough} of the 40 terms of dh(40)/dw make up all but 1% of the whole"
    assert terms(example("TimeDelay"), normal(3, 1, 3), 3).verdict == (
        "no parameter has to do with the state after 3 steps"
    )


def test_it_reads_well() -> None:
    said = str(terms(linear(0.5 * orthogonal(4)), normal(12, 1, 3), 12)).split("\n")
    assert said[1].split() == ["last", "terms", "kept", "1", "2", "5", "10"]
    assert said[2].split()[0] == "missing"
    assert said[3].startswith("  their sum differs from the whole by ")
    assert said[4] == "  parameters: W, U"
