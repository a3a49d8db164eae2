"""`terms`: dh(t)/dw as a sum over steps: the closed form of a linear net, and the whole of every cell."""

from __future__ import annotations

import pytest
import torch

from leporello.analysis import terms
from tests.analysis.nets import WITH_STATE, example, linear, normal, orthogonal, walked


def test_a_linear_net_has_the_powers_of_its_matrix() -> None:
    """dh(t)/dW[a, b] = sum over i of W^(t - i) e_a h(i - 1)[b]; with respect to U the same with x(i)."""
    net, inputs, t = linear(0.9 * orthogonal(4)), normal(9, 2, 3), 7
    result = terms(net, inputs, t, row=1)
    W = net.cell.W.detach()
    _, states = walked(net, inputs)
    for i in range(1, t + 1):
        power = torch.linalg.matrix_power(W, t - i)
        of_w = torch.einsum("na,b->nab", power, states[i - 1][1].detach())
        of_u = torch.einsum("na,b->nab", power, inputs[i - 1, 1])
        torch.testing.assert_close(result.terms["W"][i - 1], of_w, rtol=0, atol=1e-12)
        torch.testing.assert_close(result.terms["U"][i - 1], of_u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", WITH_STATE)
def test_the_terms_of_every_cell_sum_to_the_whole(name: str) -> None:
    net, inputs = example(name), normal(5, 2, 3)
    draws = net.draw(inputs)
    result = terms(net, inputs, 4, draws=draws)
    assert result.error < 1e-12
    _, states = walked(net, inputs[:4], draws)
    final = states[4] if isinstance(states[4], tuple) else (states[4],)
    after = torch.cat([leaf.flatten(1) for leaf in final], 1)[0]
    for name, parameter in net.cell.named_parameters():
        if name in result.whole and after.requires_grad:
            rows = [torch.autograd.grad(n, parameter, retain_graph=True, materialize_grads=True)[0] for n in after]
            torch.testing.assert_close(result.whole[name], torch.stack(rows), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(result.terms[name].sum(0), torch.stack(rows), rtol=1e-9, atol=1e-12)


def test_what_is_missing_falls_to_nothing() -> None:
    result = terms(linear(0.5 * orthogonal(4)), normal(20, 1, 3), 20, parameters=["U"])
    assert result.cut[0].item() == pytest.approx(1)
    assert result.cut[-1] < 1e-14
    assert list(result.terms) == ["U"]
    last = result.terms["U"][-5:].sum(0)
    wanted = (result.whole["U"] - last).norm() / result.whole["U"].norm()
    assert result.cut[5].item() == pytest.approx(wanted.item(), rel=1e-9)
    torch.testing.assert_close(result.sizes, result.terms["U"].flatten(1).norm(dim=1))


def test_the_first_step_has_one_term() -> None:
    result = terms(example("GRU"), normal(3, 1, 3), 1)
    assert {name: len(value) for name, value in result.terms.items()} == dict.fromkeys(result.whole, 1)
    assert result.verdict == "it takes all 1 terms of dh(1)/dw to come within 1% of the whole"


def test_verdicts_tell_how_many_terms_are_enough() -> None:
    result = terms(linear(0.5 * orthogonal(4)), normal(40, 1, 3), 40, parameters=["W"])
    enough = int((result.cut <= 0.01).nonzero()[0])
    assert 3 < enough < 12
    assert result.verdict == f"the last {enough} of the 40 terms of dh(40)/dw make up all but 1% of the whole"
    assert terms(example("TimeDelay"), normal(3, 1, 3), 3).verdict == (
        "no parameter has to do with the state after 3 steps"
    )


def test_it_reads_well() -> None:
    said = str(terms(linear(0.5 * orthogonal(4)), normal(12, 1, 3), 12)).split("\n")
    assert said[1].split() == ["last", "terms", "kept", "1", "2", "5", "10"]
    assert said[2].split()[0] == "missing"
    assert said[3].startswith("  their sum differs from the whole by ")
    assert said[4] == "  parameters: W, U"
