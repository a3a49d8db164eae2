"""Program 10-2: an output at every step, and hidden units that read the last output (a Jordan net).

Now and then a pulse of +1 or -1 comes; the net says which came last. The output is all it can remember, and here that
is enough. It learns from true outputs (teacher forcing), all steps at once, and then runs on its own.

    python examples/10_2_jordan.py
"""

import torch
from torch import nn

import leporello as lp


def pulses(count, length=20):
    x = torch.randint(2, (length, count, 1)) * 2.0 - 1
    x[1:] *= torch.rand(length - 1, count, 1) < 0.2
    last = torch.where(x != 0, torch.arange(length).reshape(-1, 1, 1), 0).cummax(0).values
    return x, x.gather(0, last)


torch.manual_seed(0)
torch.set_num_threads(1)
net = lp.Recurrent(lp.Jordan(1, 16, 1))  # a = b + W o + U x;  h = tanh a;  o = c + V h
print(lp.fold(net.cell, torch.zeros(1, 1), loss=nn.functional.mse_loss))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
updates = 800
for _ in range(updates):
    x, y = pulses(64)
    loss = (net(x, targets=y)[0] - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

x, y = pulses(1000, length=100)
print(f"forced, error {(net(x, targets=y)[0] - y).square().mean().item():.4f}")
print(f"free,   error {(net(x)[0] - y).square().mean().item():.4f}")
