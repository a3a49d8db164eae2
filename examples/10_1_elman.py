"""Program 10-1: an output at every step, and hidden units that read themselves one step later (an Elman net).

It reads random numbers and has to say, at every step, what it read three steps ago.

    python examples/10_1_elman.py
"""

import torch
from torch import nn

import leporello as lp

torch.manual_seed(0)
torch.set_num_threads(1)
net = lp.Recurrent(lp.Elman(1, 16, 1))  # a = b + W h + U x;  h = tanh a;  o = c + V h
print(lp.fold(net.cell, torch.zeros(1, 1), loss=nn.functional.mse_loss))

updates = 1000
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, updates)
for update in range(updates):
    x = torch.randn(20, 64, 1)  # (length, batch, features)
    o, h = net(x)
    loss = (o[3:] - x[:-3]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    slower.step()
    if update % 200 == 0:
        print(f"update {update:4}   loss {loss.item():.4f}")

x = torch.randn(20, 1000, 1)
o, h = net(x)
print(f"error on new sequences {(o[3:] - x[:-3]).square().mean().item():.4f}")
for t in range(3, 8):
    print(f"x(t-3) {x[t - 3, 0].item():6.3f}   o(t) {o[t, 0].item():6.3f}")
