"""Small steps, one line each: what kernels cover, and what they refuse.

A step is a function of x, h and a parameter p; x and h are [batch, 6], those of MATRICES [batch, 2, 3]; p is [6, 6].
Numbers from which no gradient comes are made of integers, `of(h)`: some of torch's operators have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def of(value: Tensor) -> Tensor:
    """Integers from -20 to 20 or so."""
    return (9 * value).long()


def whole(value: Tensor) -> Tensor:
    """The same as floats."""
    return of(value).double()


def written(h: Tensor, x: Tensor) -> Tensor:
    t = h * 0.5
    t[:, 1:3] = x[:, :2]
    t[:, 4] *= 2
    t[:, ::2] += x[:, 1::2]
    t.view(-1, 2, 3)[:, 1, 0] = 0.3
    return t.add_(0.1).mul_(h)


def put(h: Tensor, x: Tensor) -> Tensor:
    t = h * 1.0
    t[:, [4, 1, -1]] = x[:, :3]
    t[:, torch.tensor([0, 2])] += 0.5
    return t


POINTWISE: dict[str, Step] = {
    "arithmetic": lambda x, h, p: (2 * h - x / 3 + 1) * (1 - h) - -h,
    "add with factor": lambda x, h, p: (
        torch.add(h, x, alpha=0.3) + torch.sub(h, x, alpha=2) + torch.rsub(h, x, alpha=3)
    ),
    "division": lambda x, h, p: h / (2 + x * x) + 1 / (3 + h) + torch.reciprocal(h + 4),
    "powers": lambda x, h, p: (2 + h) ** 0.5 + h**2 + h**3 + (2 + h) ** -1.5 + 2**h + (2 + h) ** x + h**1,
    "exponentials": lambda x, h, p: torch.exp(h) + torch.exp2(h) + torch.expm1(h) + torch.sigmoid(h),
    "logarithms": lambda x, h, p: torch.log(3 + h) + torch.log2(3 + h) + torch.log10(3 + h) + torch.log1p(3 + h),
    "roots": lambda x, h, p: torch.sqrt(3 + h) + torch.rsqrt(3 + h) + torch.square(h) + torch.hypot(h, x),
    "circles": lambda x, h, p: torch.sin(h) + torch.cos(h) + torch.tan(h / 3) + torch.atan(h) + torch.atan2(h, 2 + x),
    "inverse circles": lambda x, h, p: torch.asin(h / 9) + torch.acos(h / 9),
    "hyperbolas": lambda x, h, p: torch.sinh(h) + torch.cosh(h) + torch.tanh(h) + torch.asinh(h),
    "inverse hyperbolas": lambda x, h, p: torch.acosh(h + 9) + torch.atanh(h / 9),
    "error function": lambda x, h, p: torch.erf(h) + torch.erfc(h) + torch.special.ndtr(h),
    "signs": lambda x, h, p: (
        torch.abs(h) + torch.sign(h) * x + torch.sgn(of(h)) + torch.copysign(of(h), whole(x) + 0.5)
    ),
    "rounding": lambda x, h, p: torch.floor(9 * h) + torch.ceil(h) + torch.round(7 * h) + torch.trunc(5 * h),
    "limits": lambda x, h, p: torch.minimum(h, x) + torch.maximum(h, x) + torch.fmin(h, x) + torch.fmax(h, x),
    "clamp": lambda x, h, p: h.clamp(-0.2, 0.3) + h.clamp(min=0) + h.clamp_max(0.1) + h.clamp(x - 1, x + 1),
    "clamp by one tensor": lambda x, h, p: torch.clamp(h, min=x) + torch.clamp(h, max=p[0]),
    "comparisons": lambda x, h, p: h * (h > x) + x * (h <= x) + (h != x) * 1.0 + (h < 0.1) + (x >= 0.2) * h,
    "logic": lambda x, h, p: h * ((h > 0) & (x > 0) | (h < -1)) + x * ~(x > 0) + h * ((h > 0) ^ (x > 0)),
    "logic of numbers": lambda x, h, p: (
        h * torch.logical_and(h, x) + torch.logical_not(h) + torch.logical_xor(h, x) * x
    ),
    "where": lambda x, h, p: torch.where(h > x, h, 2 * x) + torch.where(x > 0, h, 0.5) + torch.where(h > 0, 1.0, -1.0),
    "masked_fill": lambda x, h, p: h.masked_fill(x > 0.3, -1.0) + h.masked_fill(h > 0, torch.tensor(0.5)),
    "addcmul": lambda x, h, p: torch.addcmul(h, x, h, value=0.7) + torch.addcdiv(h, x, 3 + h, value=-0.2),
    "lerp": lambda x, h, p: torch.lerp(h, x, 0.3) + torch.lerp(h, x, torch.sigmoid(p[0])),
    "remainder": lambda x, h, p: (9 * h) % 2 + torch.remainder(9 * x, -1.5) + h % (3 + x) + torch.frac(5 * h),
    "fmod": lambda x, h, p: torch.fmod(9 * h, 2) + torch.fmod(9 * h, 3 + x),
    "floor division": lambda x, h, p: whole(h) // 2 + torch.div(9 * h, x + 3, rounding_mode="floor") + h,
    "truncated division": lambda x, h, p: torch.div(9 * h, 2, rounding_mode="trunc") + h,
    "odd numbers": lambda x, h, p: h + torch.nan_to_num(whole(h) / 0) / 1e300 + torch.isnan(h) + torch.isinf(of(h) / 0),
    "two logarithms": lambda x, h, p: torch.logaddexp(h, x) + torch.xlogy(h, 3 + x) + torch.logit(torch.sigmoid(h)),
    "entropies": lambda x, h, p: torch.special.entr(torch.sigmoid(h)) + torch.special.xlog1py(h, x * x),
    "sinc": lambda x, h, p: torch.sinc(h) + torch.heaviside(whole(h), whole(x)) + torch.deg2rad(h),
    "same value twice": lambda x, h, p: (
        torch.tanh(torch.tanh(h + x) * torch.tanh(h - x)) + torch.tanh(torch.tanh(h + x))
    ),
}
ACTIVATIONS: dict[str, Step] = {
    "relu": lambda x, h, p: F.relu(h) + F.relu6(9 * h) + F.leaky_relu(h, 0.2) + F.threshold(h, 0.1, 0.3),
    "prelu": lambda x, h, p: F.prelu(h, p[0]) + F.prelu(h, p[0, :1]),
    "elu": lambda x, h, p: F.elu(h) + F.selu(h) + F.celu(h, 0.7),
    "gelu": lambda x, h, p: F.gelu(h) + F.gelu(h, approximate="tanh"),
    "silu": lambda x, h, p: F.silu(h) + F.mish(h) + F.softplus(h) + F.softplus(h, beta=3),
    "hard": lambda x, h, p: F.hardtanh(2 * h) + F.hardsigmoid(whole(h) / 3) + F.hardswish(4 * h) + F.hardshrink(h, 0.2),
    "soft": lambda x, h, p: F.softsign(h) + F.tanhshrink(h) + F.softshrink(h, 0.2) + F.logsigmoid(h),
    "glu": lambda x, h, p: F.glu(h, -1),
    "dropout without draws": lambda x, h, p: F.dropout(h, 0.5, training=False),
}
REDUCTIONS: dict[str, Step] = {
    "sum": lambda x, h, p: h.sum(-1, keepdim=True) * x + h.sum(1)[:, None],
    "mean": lambda x, h, p: h - h.mean(-1, keepdim=True) * h.mean(1)[:, None],
    "largest": lambda x, h, p: h.max(-1, keepdim=True).values + h.amax(1, keepdim=True),
    "smallest": lambda x, h, p: h.min(-1, keepdim=True).values + x - h.amin(1, keepdim=True),
    "largest and smallest": lambda x, h, p: h.aminmax(dim=1).max[:, None] * h.aminmax(dim=1).min[:, None],
    "variance": lambda x, h, p: h.var(-1, keepdim=True) + h.std(-1, keepdim=True) + h.var(-1, unbiased=False)[:, None],
    "variance and mean": lambda x, h, p: torch.var_mean(h, -1, keepdim=True)[0] * torch.std_mean(h, 1)[1][:, None],
    "variance of one": lambda x, h, p: h[:, :1].var(-1, keepdim=True, unbiased=False) + h,
    "product": lambda x, h, p: torch.tanh(h + 1).prod(-1, keepdim=True),
    "any": lambda x, h, p: h * (h > 1).any(-1, keepdim=True) + (h / 9).any(-1)[:, None],
    "all": lambda x, h, p: x * (h > -1).all(-1, keepdim=True) + (h / 9).all(-1)[:, None] * h,
    "softmax": lambda x, h, p: torch.softmax(h, -1) + F.softmin(h, -1),
    "log_softmax": lambda x, h, p: torch.log_softmax(h, -1),
    "logsumexp": lambda x, h, p: h.logsumexp(-1, keepdim=True),
    "norms": lambda x, h, p: h.norm(dim=-1, keepdim=True) + torch.linalg.vector_norm(h, 1, dim=-1)[:, None],
    "other norms": lambda x, h, p: torch.linalg.vector_norm(h, 3, dim=-1)[:, None] + h.norm(torch.inf, 1)[:, None],
    "normalised": lambda x, h, p: F.normalize(h, dim=-1) + F.cosine_similarity(h, x, dim=-1)[:, None],
    "layer norm": lambda x, h, p: F.layer_norm(h, (6,), p[0], p[1]) + F.layer_norm(h, (6,)),
    "rms norm": lambda x, h, p: F.rms_norm(h, (6,), p[0]),
    "group norm": lambda x, h, p: F.group_norm(h, 2, p[0], p[1]) + F.group_norm(h, 3),
    "cross entropy": lambda x, h, p: F.cross_entropy(h, torch.softmax(x, -1), reduction="none")[:, None],
    "square distance": lambda x, h, p: F.mse_loss(h, x, reduction="none"),
    "other distances": lambda x, h, p: F.smooth_l1_loss(h, x, reduction="none") + F.huber_loss(h, x, reduction="none"),
    "counts": lambda x, h, p: h * (h > x).sum(-1, keepdim=True) + torch.count_nonzero(h > 0, dim=1)[:, None],
    "running sum": lambda x, h, p: h.cumsum(-1),
    "running product": lambda x, h, p: torch.cumprod(torch.sigmoid(h), -1),
    "sum of a spread value": lambda x, h, p: (torch.tanh(h)[:, :, None] * torch.tanh(x)[:, None, :]).sum(1),
    "sum without NaN": lambda x, h, p: torch.where(h > 0, h, torch.nan).nansum(-1, keepdim=True),
    "largest of integers": lambda x, h, p: h * of(h).amax(-1, keepdim=True) + x * of(h).int().amin(-1, keepdim=True),
    "largest window": lambda x, h, p: F.max_pool1d(h[:, None], 2)[:, 0],
}
VIEWS: dict[str, Step] = {
    "cat": lambda x, h, p: torch.cat([h, x, h[:, :2], x], -1),
    "stack": lambda x, h, p: torch.stack([h, x, h + x], 1) * torch.stack([h, x, x], -1).transpose(1, 2),
    "chunk": lambda x, h, p: h.chunk(2, -1)[1] * h.split(3, -1)[0] + h.split([1, 3, 2], -1)[1],
    "unbind": lambda x, h, p: h.unbind(-1)[4][:, None] + h.tensor_split(2, 1)[1],
    "slices": lambda x, h, p: h[:, 1:4] * h[:, ::2] + h[:, -3:] + h.narrow(1, 2, 3) + h[:, 1:6:2],
    "one place": lambda x, h, p: h[:, 2:3] * x + h[:, -1, None] + h.select(1, 0)[:, None],
    "flip": lambda x, h, p: h.flip(-1) * h,
    "flip, then reshape": lambda x, h, p: h.flip(-1).view(-1, 2, 3).flip(1).transpose(1, 2).reshape(-1, 6),
    "a part of a view": lambda x, h, p: torch.tanh(h.view(-1, 2, 3) * x.view(-1, 2, 3)).view(-1, 6)[:, :3],
    "roll": lambda x, h, p: h.roll(2, -1),
    "pad": lambda x, h, p: F.pad(h, (1, 2), value=0.3) * F.pad(h, (2, 1)) + F.pad(h, (4, -1)),
    "pad in a circle": lambda x, h, p: F.pad(h[:, None], (2, 1), "circular")[:, 0],
    "expand": lambda x, h, p: h[:, :, None].expand(-1, 6, 2).sum(2) + h[:, :1].expand(-1, 6) + x.expand_as(h),
    "rows of a parameter": lambda x, h, p: p[0].expand(h.shape[0], 6) * h,
    "repeat": lambda x, h, p: h.repeat(1, 2) + torch.tile(h, (1, 2)) + h.repeat_interleave(2, 1),
    "squeeze": lambda x, h, p: h.unsqueeze(1).squeeze(1) + h[:, None, :, None].squeeze(3).squeeze(1),
    "windows": lambda x, h, p: h.unfold(1, 3, 1) * h.unfold(1, 3, 1).flip(2) + x.unfold(1, 3, 1),
    "as_strided": lambda x, h, p: torch.as_strided(whole(h), (h.shape[0], 2, 2), (6, 2, 1), 1) + x[:, :2, None],
    "diag_embed": lambda x, h, p: torch.diag_embed(h).sum(2) + torch.diag_embed(h, 1)[:, 1:, 0],
    "larger by repetition": lambda x, h, p: F.interpolate(h[:, None], 12)[:, 0],
    "places": lambda x, h, p: h * torch.arange(6) + torch.eye(6)[2] * h + torch.linspace(0, 1, 6) * x,
    "rows of constants": lambda x, h, p: torch.ones(h.shape[0], 6) * h + torch.zeros(h.shape[0], 1) * x,
    "constants like others": lambda x, h, p: torch.full_like(h, 0.3) * h + h.new_zeros(h.shape[0], 6).copy_(x),
    "numbers in the step": lambda x, h, p: h * torch.tensor([1.0, -1.0, 0.5, 0.25, 2.0, 3.0]) + torch.tensor(0.3),
    "written to": lambda x, h, p: written(h, x),
    "copies": lambda x, h, p: h.clone().detach() * h + h.contiguous() + h.float().double(),
}
PRODUCTS: dict[str, Step] = {
    "matrix": lambda x, h, p: h @ p + F.linear(h, p, p[0]) + (p @ h.T).T,
    "matrix and sum": lambda x, h, p: torch.addmm(x, h, p, beta=0.3, alpha=0.7),
    "matrix of a part": lambda x, h, p: h[:, 1:4] @ p[:3] + h[:, ::2] @ p[3:] + torch.tanh(h) @ torch.tanh(p),
    "normed matrix": lambda x, h, p: h @ torch._weight_norm(p, p[:, :1]).T,
    "outer product": lambda x, h, p: h[:, :, None] * x[:, None, :],
    "outer product by einsum": lambda x, h, p: torch.einsum("bi,bj->bij", h, torch.tanh(x)),
    "inner product": lambda x, h, p: torch.einsum("bi,bi->b", h, x)[:, None] + torch.linalg.vecdot(h, x)[:, None],
    "inner product by bmm": lambda x, h, p: torch.bmm(h[:, None], x[:, :, None])[:, 0],
    "bilinear": lambda x, h, p: F.bilinear(h, x[:, :2], p.view(3, 6, 2)),
    "trace": lambda x, h, p: torch.einsum("bii->b", h[:, :, None] * x[:, None])[:, None],
    "triangles": lambda x, h, p: torch.tril(h[:, :, None] * x[:, None]) + torch.triu(h[:, :, None] * x[:, None], 1),
    "diagonals": lambda x, h, p: (
        (h[:, :, None] * x[:, None]).diagonal(1, 1, 2) + (h[:, :, None] * x[:, None])[:, 1:, 0]
    ),
    "convolution": lambda x, h, p: F.conv1d(h[:, None], p[:2, None, :3], p[0, :2], padding=1),
    "convolution, transposed": lambda x, h, p: F.conv_transpose1d(h[:, None], p[:1, None, :2])[:, 0],
    "convolution, transposed, in groups": lambda x, h, p: F.conv_transpose1d(
        h.view(-1, 2, 3), p[:2, :3, None].view(2, 1, 3), p[0, :2], stride=2, padding=1, output_padding=1, groups=2
    ).flatten(1),
    "convolution with holes": lambda x, h, p: F.conv1d(h[:, None], p[:2, None, :2], dilation=3, stride=2, padding=2),
    "cell of torch": lambda x, h, p: torch.gru_cell(x, h[:, :2], p, p[:, :2], p[0], p[1]),
    "cell of torch with two states": lambda x, h, p: torch.lstm_cell(
        x, [h[:, :1], h[:, 1:2]], p[:4], p[4:, :1].repeat(2, 1)
    )[0],
}
MATRICES: dict[str, Step] = {
    "reduced": lambda x, h, p: h.sum((1, 2))[:, None] + h.mean(1) + h.amax((1, 2))[:, None] + h.cumsum(1)[:, 1],
    "softmax of columns": lambda x, h, p: torch.softmax(h, 1) + torch.log_softmax(h, 2),
    "layer norm of rows": lambda x, h, p: F.layer_norm(h, (3,)) + F.layer_norm(h, (2, 3), p[0].view(2, 3)),
    "group norm of channels": lambda x, h, p: F.group_norm(h, 1, p[0, :2], p[1, :2]),
    "instance norm": lambda x, h, p: F.instance_norm(h),
    "permute": lambda x, h, p: h.unsqueeze(1).permute(0, 3, 1, 2).reshape(-1, 6) + h.movedim(1, 2).flatten(1),
    "turned": lambda x, h, p: h.mT.reshape(-1, 6) * h.view(-1, 3, 2).transpose(1, 2).flatten(1),
    "flip of both": lambda x, h, p: h.flip((1, 2)).view(-1, 3, 2),
    "roll of both": lambda x, h, p: h.roll((1, -1), (1, 2)),
    "pad of both": lambda x, h, p: F.pad(h, (1, 1, 1, 0)),
    "cat of rows": lambda x, h, p: torch.cat([h, x, h], 1),
    "linear": lambda x, h, p: F.linear(h, p[:4, :3], p[0, :4]),
    "linear twice": lambda x, h, p: F.linear(torch.tanh(F.linear(h.mT, p[:5, :2])), p[:2, :5]),
    "heads": lambda x, h, p: torch.einsum("bhi,hij->bhj", h, p.view(2, 3, 6)),
    "heads by bmm": lambda x, h, p: torch.bmm(h.transpose(0, 1), p.view(2, 3, 6)).transpose(0, 1),
    "a matrix of the row": lambda x, h, p: torch.bmm(h, x.mT) + h @ x.mT,
    "fast weights": lambda x, h, p: torch.einsum("bij,bj->bi", h, x[:, 0]),
    "fast weights and sum": lambda x, h, p: torch.baddbmm(h[:, :, :1], h, x[:, :1].mT),
    "attention": lambda x, h, p: torch.softmax(h @ x.mT, -1) @ h,
    "attention of torch": lambda x, h, p: F.scaled_dot_product_attention(h, x, x),
    "attention of heads": lambda x, h, p: torch.softmax(h[..., None] @ x[:, :, None], -1) @ h[..., None],
    "cross product": lambda x, h, p: torch.linalg.cross(h, x),
    "convolution of groups": lambda x, h, p: F.conv1d(h, p[:4, :1, None], groups=2, stride=2),
    "convolution of two axes": lambda x, h, p: F.conv2d(h[:, None], p[:2, :4].view(2, 1, 2, 2), padding=1),
}
PLACES: dict[str, Step] = {
    "embedding": lambda x, h, p: F.embedding(h.argmax(-1), p) + F.embedding(h.view(-1, 2, 3).argmax(-1), p).sum(1),
    "rows of a table": lambda x, h, p: p[h.argmax(-1)] + p[:, 1][h.argmin(-1)][:, None],
    "gather": lambda x, h, p: h.gather(1, x.argmax(-1, keepdim=True)) + h.gather(1, x.argsort(-1, descending=True)),
    "index_select": lambda x, h, p: h.index_select(1, torch.tensor([3, 0, 3])) + h[:, [0, -1, 0]],
    "picked in two axes": lambda x, h, p: h.view(-1, 2, 3)[:, [0, 1, 1], [2, 0, -1]],
    "written to places": lambda x, h, p: put(h, x),
    "scattered": lambda x, h, p: torch.zeros_like(h).scatter(1, x.argmax(-1, keepdim=True), h[:, :1]),
    "a number scattered": lambda x, h, p: h.scatter(1, x.argmin(-1, keepdim=True), 0.7),
    "scattered and added": lambda x, h, p: h.scatter_add(1, x.view(-1, 2, 3).argmax(-1), h[:, :2]),
    "added to places": lambda x, h, p: h.index_add(1, torch.tensor([1, 1, 4]), x[:, :3]),
    "scattered anywhere": lambda x, h, p: torch.zeros_like(h).scatter(1, x.argsort(-1), h * x),
    "one hot": lambda x, h, p: F.one_hot(h.argmax(-1), 6) * x + h,
    "argmax": lambda x, h, p: (
        h * h.argmax(-1, keepdim=True) + h.argmin(-1, keepdim=True) * x + of(h).argmax(-1)[:, None]
    ),
    "sort": lambda x, h, p: h.sort(-1).values + x.sort(-1, descending=True).values * h.sort(stable=True).indices,
    "topk": lambda x, h, p: h.topk(3, -1).values + h.topk(3, -1, largest=False).values * 2,
    "steps of a ladder": lambda x, h, p: torch.bucketize(h, torch.linspace(-1, 1, 5).double()) * h,
    "integers": lambda x, h, p: h * (of(h) % 4 + of(h) // 2 + of(h) ** 2 + abs(of(h)) + torch.sign(of(h))),
    "bits": lambda x, h, p: h * ((of(h) & 3) + (of(h) | 1) + ~of(h) + (of(h) ^ 5)) + of(h) / (of(x) * 2 + 1),
    "small integers": lambda x, h, p: h * of(h).to(torch.uint8).clamp(max=9) + (h > 0).to(torch.int8) * x,
}
TABLES: dict[str, dict[str, Step]] = {
    "pointwise": POINTWISE,
    "activations": ACTIVATIONS,
    "reductions": REDUCTIONS,
    "views": VIEWS,
    "products": PRODUCTS,
    "matrices": {
        f"{name} (matrices)": lambda x, h, p, step=step: step(x.view(-1, 2, 3), h.view(-1, 2, 3), p)  # type: ignore[misc]
        for name, step in MATRICES.items()
    },
    "places": PLACES,
}
# What is refused, by the name that the refusal must say.
REFUSED: dict[str, Step] = {
    "_linalg_solve_ex": lambda x, h, p: torch.linalg.solve(torch.eye(6) + h[:, :, None] * x[:, None] / 9, h),
    "median": lambda x, h, p: h.median(-1).values[:, None],
    "cummax": lambda x, h, p: h.cummax(-1).values,
    "logcumsumexp": lambda x, h, p: h.logcumsumexp(-1),
    "erfinv": lambda x, h, p: torch.erfinv(torch.tanh(h) / 2),
    "searchsorted": lambda x, h, p: torch.searchsorted(torch.linspace(-1, 1, 5).double(), h) * h,
    "scatter_reduce": lambda x, h, p: torch.scatter_reduce(h, 1, of(x).argsort(-1), x, "amax"),
    "avg_pool2d": lambda x, h, p: F.avg_pool1d(h[:, None], 2)[:, 0],
    "_cdist_forward": lambda x, h, p: torch.cdist(h.view(-1, 2, 3), x.view(-1, 2, 3)),
    "convolution": lambda x, h, p: F.conv1d(h[:, :, None].expand(-1, 6, 3000), p[:4, :, None]).mean(2),  # too large
    "sort": lambda x, h, p: h.repeat(1, 50).sort(-1).values[:, :6],  # too many to compare all with all
    "type complex128": lambda x, h, p: torch.fft.rfft(h).abs(),
    "type bfloat16": lambda x, h, p: torch.tanh(h.bfloat16()).double(),
    "reads bits as another type": lambda x, h, p: h.view(torch.int64) * 1e-20,
}
