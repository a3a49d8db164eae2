"""Program 10-3: hidden units that read themselves one step later, and one output when the sequence has ended.

Sequences of 5 to 25 steps of +1 and -1: were there more of +1? Each row of a batch ends where it ends.

    python examples/10_3_summary.py
"""

import torch
from torch import nn

import leporello as lp


def votes(count, longest=25):
    x = torch.randint(2, (longest, count, 1)) * 2.0 - 1
    lengths = torch.randint(2, longest // 2 + 1, (count,)) * 2 + 1  # odd: there is no draw
    within = torch.arange(longest).reshape(-1, 1, 1) < lengths.reshape(1, -1, 1)
    return x, lengths, ((x * within).sum(0) > 0).float()


torch.manual_seed(0)
torch.set_num_threads(1)
net = lp.Summary(lp.RNN(1, 16), nn.Linear(16, 1))  # the head reads the last state, once
print(lp.fold(net, votes(1)[0]).unfold(3))
updates = 600
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(updates):
    x, lengths, y = votes(64)
    loss = nn.functional.binary_cross_entropy_with_logits(net(x, lengths=lengths)[0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for longest in (25, 51):
    x, lengths, y = votes(2000, longest)
    right = (net(x, lengths=lengths)[0] > 0) == (y > 0)
    print(f"up to {longest} steps: {right.float().mean().item():.1%} right")
