"""What steps use of torch beside plain operators: convolutions, attention, distributions, decompositions, FFT."""

import pytest
import torch
import torch.nn.functional as F
from torch import distributions, nn

import leporello as lp
from tests.nets.twins import quickly, thoroughly

X = torch.randn(4, 3, 4)


class Convolving(nn.Module):
    """A convolution of [x, h] in 1, 2 or 3 dimensions."""

    def __init__(self, axes, **options):
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        self.inner = kind(6, 8, 3, padding=1, **options)

    def forward(self, x, h):
        a, b = self.inner(torch.cat([x, h], 1)).chunk(2, 1)
        h = torch.sigmoid(a) * h + torch.tanh(b)
        return h, h


class Hourglass(nn.Module):
    """A convolution with strides, and a transposed one back."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)

    def forward(self, x, h):
        h = torch.tanh(self.up(torch.relu(self.down(torch.cat([x, h], 1)))))
        return h, h


CONVOLUTIONS = {
    "1 axis": (lambda: Convolving(1), (5,)),
    "2 axes": (lambda: Convolving(2), (4, 3)),
    "3 axes": (lambda: Convolving(3), (2, 3, 4)),
    "groups": (lambda: Convolving(2, groups=2), (4, 3)),
    "circular": (lambda: Convolving(1, padding_mode="circular"), (5,)),
    "strides, transposed": (Hourglass, (4, 6)),
}


@pytest.mark.parametrize(
    "name", ["2 axes", "strides, transposed", *thoroughly("1 axis", "3 axes", "groups", "circular")]
)
def test_convolutions_in_single_precision_never_run_on_the_reference(name):
    make, size = CONVOLUTIONS[name]
    torch.manual_seed(0)
    net, inputs, h = lp.Recurrent(make()), torch.randn(3, 2, 2, *size), torch.zeros(2, 4, *size)
    assert "engine   reference" not in net.explain(inputs, h)
    assert lp.check_gradients(net, inputs, h).ok


class Attending(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.U = part, nn.Linear(4, 8)

    def forward(self, x, m):
        if isinstance(self.part, nn.MultiheadAttention):
            y, _ = self.part(m, m, m, need_weights=False)
        elif isinstance(self.part, nn.TransformerDecoderLayer):
            y = self.part(m, m + self.U(x).unsqueeze(1))
        else:
            y = self.part(m)
        m = torch.tanh(y + self.U(x).unsqueeze(1))
        return m[:, 0], m


def by_heads(m):
    q = m.view(-1, 5, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)


ATTENTION = {
    "scaled dot product": lambda: by_heads,
    "MultiheadAttention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
    "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
}


@pytest.mark.parametrize("mode", ["eval", *thoroughly("train")])
@pytest.mark.parametrize("name", quickly(ATTENTION, "MultiheadAttention", "TransformerDecoderLayer"))  # hold the others
def test_attention_runs_as_a_kernel(name, mode):
    torch.manual_seed(0)
    cell = getattr(Attending(ATTENTION[name]()), mode)()
    assert lp.check_gradients(lp.Recurrent(cell, engine="cpu"), X, 0.1 * torch.randn(3, 5, 8)).ok


def test_attention_with_dropout_draws_its_mask():
    cell = Attending(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True))
    net, state = lp.Recurrent(cell, engine="cpu"), 0.1 * torch.randn(3, 5, 8)
    assert len(net.draw(X, state)) == 1
    assert lp.check_gradients(net, X, state).ok


def normal(a, h):
    return distributions.Normal(a, F.softplus(h) + 0.1).rsample()


def validated(a, h):
    one = distributions.Normal(a, F.softplus(h) + 0.1, validate_args=True)
    return one.rsample() + one.log_prob(h)


def categorical(a, h):
    chosen = distributions.Categorical(logits=a + h).sample()
    return a * F.one_hot(chosen, 6)


def many_categoricals(a, h):
    chosen = distributions.Categorical(logits=(a + h).view(-1, 2, 3)).sample()
    return a * F.one_hot(chosen, 3).flatten(1)


def straight_through(a, h):
    return distributions.OneHotCategoricalStraightThrough(logits=(a + h).view(-1, 2, 3)).rsample().flatten(1)


def bernoulli(a, h):
    return a * distributions.Bernoulli(logits=h).sample()


def divergence(a, h):
    one = distributions.Independent(distributions.Normal(a, 1.0), 1)
    other = distributions.Independent(distributions.Normal(h, torch.ones_like(h)), 1)
    z = one.rsample()
    return z + distributions.kl_divergence(one, other).unsqueeze(1) + one.log_prob(z).unsqueeze(1)


def inverse(a, h):
    return torch.linalg.inv(_square(h)).reshape(-1, 4).repeat(1, 2)[:, :6] + a


def solved(a, h):
    return torch.linalg.solve(_square(h), h[:, :2]).repeat(1, 3) + a


def cholesky(a, h):
    return torch.linalg.cholesky(_square(h)).reshape(-1, 4).repeat(1, 2)[:, :6] + a


def fourier(a, h):
    return torch.fft.irfft(torch.fft.rfft(h) * 0.5, n=6) + a


def _square(h):
    m = h.view(-1, 2, 3)
    return torch.eye(2, dtype=h.dtype) + 0.1 * m @ m.mT


KERNELS = [normal, validated, categorical, many_categoricals, straight_through, bernoulli, divergence]


@pytest.mark.parametrize(
    "function",
    quickly(
        [*KERNELS, inverse, solved, cholesky, fourier], many_categoricals, straight_through, divergence, solved, fourier
    ),
    ids=lambda f: f.__name__,
)
def test_distributions_decompositions_and_transforms_run_on_a_fast_engine(function):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.U = nn.Linear(4, 6)

        def forward(self, x, h):
            h = torch.tanh(function(self.U(x), h))
            return h, h

    torch.manual_seed(0)
    net = lp.Recurrent(Cell(), engine="cpu" if function in KERNELS else "stepwise")
    assert lp.check_gradients(net, X, 0.5 * torch.randn(3, 6)).ok


def test_distributions_check_their_arguments_again_after_a_trace():
    distributions.Distribution.set_default_validate_args(True)  # torch.compile, in another test, turns it off
    lp.fold(lambda x, h: (normal(x, h), h), X[0], X[0])
    with pytest.raises(ValueError, match="invalid values"):
        distributions.Normal(torch.zeros(2), -torch.ones(2))
