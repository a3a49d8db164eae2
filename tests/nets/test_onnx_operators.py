"""Contract of the tables that write ONNX: each rule is used on some step, and onnxruntime gives what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import leporello as lp
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import call
from leporello.nets.export import onnx_loop
from leporello.nets.export.onnx_graph import IR_VERSION, OPSET, OnnxGraph, OnnxModel, element_type
from leporello.nets.export.onnx_loop import RULES
from leporello.nets.export.onnx_step import StepWriter

Step = Callable[[Tensor], Any]
TABLE = torch.linspace(-1, 1, 12).reshape(4, 3)
SQUARE = torch.linspace(-1, 1, 36).reshape(6, 6)
KERNEL = torch.linspace(-1, 1, 12).reshape(2, 2, 3)
PLACES = torch.tensor([[2, 0], [1, 1], [0, -1]])


def small(x: Tensor) -> Tensor:
    return torch.tanh(x) * 0.9


def positive(x: Tensor) -> Tensor:
    return x.abs() + 0.1


def whole(x: Tensor) -> Tensor:
    return (x * 3).long()


def matrix(x: Tensor) -> Tensor:
    return x.view(-1, 2, 3)


def rows(x: Tensor) -> Tensor:
    """Class indices, one for each row."""
    return whole(x)[:, 0] % 4


def filled(x: Tensor) -> Tensor:
    value = torch.zeros_like(x) + x
    value[..., :1] = 0.25
    return value


# Steps, each with the rules that it is there for. Inputs are [rows, 6].
STEPS: dict[str, tuple[str, Step]] = {
    "arithmetic": (
        "add sub rsub mul div neg abs reciprocal pow",
        lambda x: (
            torch.add(x, x[:, :1], alpha=2),
            torch.sub(x, 2, alpha=0.5),
            2 - x,
            torch.rsub(x, x.flip(-1), alpha=3),
            x * x[:, :1],
            x / positive(x),
            -x,
            x.abs(),
            x.square(),
            positive(x).reciprocal(),
            x**3,
            positive(x) ** 0.7,
            2.0**x,
            whole(x) + (x > 0),
            (x > 0) * (x < 1),
            (x > 0) + (x < -1),
        ),
    ),
    "division": (
        "floor_divide remainder fmod",
        lambda x: (
            torch.div(x, 0.3, rounding_mode="floor"),
            torch.div(x, -0.3, rounding_mode="trunc"),
            torch.div(whole(x), 4, rounding_mode="trunc"),
            torch.div(whole(x), -4, rounding_mode="floor"),
            x // 0.4,
            whole(x) // 4,
            x % 0.7,
            x % -0.7,
            whole(x) % 5,
            torch.fmod(x, 0.7),
            torch.fmod(whole(x), 5),
        ),
    ),
    "exponentials": (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sigmoid erf erfc softplus",
        lambda x: (
            x.exp(),
            x.exp2(),
            x.expm1(),
            (x * 1e-6).expm1() * 1e6,
            positive(x).log(),
            positive(x).log2(),
            positive(x).log10(),
            positive(x).log1p(),
            (x * 1e-6).log1p() * 1e6,
            positive(x).sqrt(),
            positive(x).rsqrt(),
            x.sigmoid(),
            x.erf(),
            x.erfc(),
            F.softplus(x),
            F.softplus(x, beta=2, threshold=1),
        ),
    ),
    "circles": (
        "sin cos tan asin acos atan atan2 hypot sinh cosh tanh asinh acosh atanh",
        lambda x: (
            x.sin(),
            x.cos(),
            small(x).tan(),
            small(x).asin(),
            small(x).acos(),
            x.atan(),
            torch.atan2(x, x.flip(-1)),
            torch.hypot(x, x.flip(-1)),
            x.sinh(),
            x.cosh(),
            x.tanh(),
            x.asinh(),
            (positive(x) + 1).acosh(),
            small(x).atanh(),
        ),
    ),
    "limits": (
        "relu clamp clamp_min clamp_max minimum maximum sign sgn copysign floor ceil trunc round",
        lambda x: (
            x.relu(),
            x.clamp(-0.5, 1),
            x.clamp(max=x[:, :1]),
            x.clamp_min(0.2),
            x.clamp_max(0.2),
            torch.minimum(x, x.flip(-1)),
            torch.maximum(x, x.flip(-1)),
            torch.maximum(x > 0, x < -1),
            x.sign(),
            x.sgn(),
            torch.copysign(positive(x), x.flip(-1)),
            x.floor(),
            x.ceil(),
            x.trunc(),
            x.round(),
            x.round(decimals=1),
            (x * 100).round(decimals=-1),
        ),
    ),
    "comparisons": (
        "eq ne lt le gt ge isnan isinf signbit logical_not logical_and logical_or logical_xor",
        lambda x: (
            whole(x) == 2,
            whole(x) != whole(x).flip(-1),
            x < 0,
            x <= x.flip(-1),
            whole(x) > 0.5,
            (x > 0) >= (x < 1),
            (x.round() / x.round()).isnan(),
            (1 / x.round()).isinf(),
            x.signbit(),
            x.logical_not(),
            torch.logical_and(x, x > 0),
            torch.logical_or(x > 1, x < -1),
            torch.logical_xor(x > 0, whole(x)),
        ),
    ),
    "bits": (
        "bitwise_not bitwise_and bitwise_or bitwise_xor",
        lambda x: (~whole(x), ~(x > 0), whole(x) & 5, (x > 0) & (x < 1), whole(x) | 3, whole(x) ^ 6, (x > 0) ^ (x < 1)),
    ),
    "choice": (
        "where masked_fill _to_copy",
        lambda x: (
            torch.where(x > 0, x, 0.5 * x.flip(-1)),
            torch.where(x > 0, x > 1, x < -1),
            torch.where(x > 0, x.to(torch.int16), 3),
            x.masked_fill(x > 0.5, 2),
            x.double() * 0.1,
            x.int(),
            F.gelu(x.half()).float(),
        ),
    ),
    "products": (
        "mm bmm addmm convolution",
        lambda x: (
            x @ SQUARE,
            matrix(x) @ matrix(x).mT,
            torch.addmm(x[:, :1], x, SQUARE, alpha=0.5, beta=2),
            F.linear(x, SQUARE, SQUARE[0]),
            F.conv1d(matrix(x), KERNEL, padding=1, bias=TABLE[0, :2]),
            F.conv1d(matrix(x), KERNEL, stride=2, padding=2, dilation=2),
            F.conv_transpose1d(matrix(x), KERNEL, stride=2, output_padding=1),
            F.conv2d(x.view(-1, 1, 2, 3), KERNEL.view(2, 1, 2, 3), padding=(1, 2)),
        ),
    ),
    "products of invariants": ("dot", lambda x: (x + SQUARE @ SQUARE[0], x * torch.dot(SQUARE[1], SQUARE[0]))),
    "reductions": (
        "sum mean prod amax amin any all argmax argmin max min",
        lambda x: (
            x.sum(-1),
            matrix(x).sum((1, 2), keepdim=True),
            (x > 0).sum(-1),
            x.mean(-1, keepdim=True),
            x.prod(-1),
            matrix(x).amax((1, 2)),
            x.amin(-1),
            (x > 1).any(-1),
            matrix(x > -2).all(-1),
            x.argmax(-1),
            matrix(x).argmin(1, keepdim=True),
            *x.max(-1),
            *matrix(x).min(1, keepdim=True),
            x * SQUARE.sum() + SQUARE.max() + SQUARE.min() + SQUARE.argmax(),
            x * (SQUARE > 2).any(),
        ),
    ),
    "norms": (
        "_softmax _log_softmax native_layer_norm cumsum cumprod sort topk",
        lambda x: (
            matrix(x).softmax(1),
            x.log_softmax(-1),
            F.layer_norm(x, (6,), SQUARE[0], SQUARE[1], 0.1),
            F.layer_norm(matrix(x), (2, 3)),
            *torch.native_layer_norm(x, [6], None, None, 0.1)[:2],
            x.cumsum(-1),
            whole(x).cumsum(-1),
            x.cumprod(-1),
            x[:, :1].cumprod(-1),
            *x.sort(-1, descending=True),
            x.sort(dim=-1, stable=True).values,
            *matrix(x).topk(2, 2, largest=False),
        ),
    ),
    "sizes": (
        "operator.getitem operator.mul",
        lambda x: (
            x.view(-1, 3).sum(-1, keepdim=True).view(x.shape[0], 2),
            x.view(2 * x.shape[0], 3).view(-1, 6),
            x.split(3, -1)[0] + 1,
        ),
    ),
    "nothing": (
        "stop clone",
        lambda x: (x.detach() * 2, x.clone() + 1, x + torch.tensor([0.5])),
    ),
    "shapes": (
        "view _unsafe_view unsqueeze squeeze t transpose permute expand repeat",
        lambda x: (
            x.view(-1, 3, 2),
            x.reshape(-1, 2, 3).mT.reshape(-1, 6),
            x.unsqueeze(1) * 2,
            x[:, :1].squeeze(-1) * 2,
            x[:, :1].unsqueeze(1).squeeze((1, 2)) * 2,
            x @ SQUARE.t(),
            matrix(x).transpose(1, 2) * 2,
            matrix(x).permute(0, 2, 1) * 2,
            x[:, :1].expand(-1, 4) * 2,
            x.repeat(1, 2),
            x.repeat(1, 1).view(-1, 1, 6).repeat(1, 3, 1),
        ),
    ),
    "new values": (
        "full fill ones zeros",
        lambda x: (
            x + torch.ones(x.shape[0], 1) / 2,
            x + torch.zeros(x.shape[0], 6),
            x * torch.full((x.shape[0], 2), 0.5).repeat(1, 3),
            x * torch.full_like(x, 3),
            x + torch.ones_like(x),
            x + torch.zeros_like(x),
            x + x.new_zeros(x.shape[0], 1) + x.new_ones(x.shape[0], 1) + x.new_full((x.shape[0], 1), 2.0),
            torch.empty_like(x).fill_(2) * x,
            filled(x),
            torch.eye(6) @ SQUARE + x.unsqueeze(1),
            torch.arange(6) * x,
        ),
    ),
    "parts": (
        "select slice split split_with_sizes unsafe_split unbind flip roll unfold tril triu",
        lambda x: (
            x[:, -1] * 2,
            x[:, 1:-1] * 2,
            x[:, ::2] * 2,
            x.split(4, -1)[1] * 2,
            x.split([1, 5], -1)[1] * 2,
            x.chunk(3, -1)[1] * 2,
            x.chunk(1, -1)[0] * 2,
            x.unsafe_split(4, -1)[0] * 2,
            torch.stack(x.unbind(-1)[::-1], -1),
            matrix(x).flip((1, 2)),
            x.roll(2, -1),
            matrix(x).roll((1, -1), (1, 2)),
            x.unfold(1, 3, 2) * 2,
            matrix(x).tril(),
            matrix(x).triu(1),
        ),
    ),
    "parts replaced": (
        "select_scatter slice_scatter",
        lambda x: (
            x.select_scatter(x[:, 0] * 2, 1, -2),
            matrix(x).select_scatter(x[:, :3], 1, 1),
            x.slice_scatter(x[:, :2] * 2, 1, 1, 3),
            x.slice_scatter(x[:, :3] * 2, 1, 0, 6, 2),
            (x > 0).slice_scatter(x[:, :2] > 1, 1, 4, 6),
        ),
    ),
    "joins": (
        "cat stack constant_pad_nd",
        lambda x: (
            torch.cat([x, whole(x), x[:, :1]], -1),
            torch.cat([matrix(x), matrix(x)], 1),
            torch.stack([x, 2 * x], 1),
            torch.stack([x, 2 * x], -1),
            F.pad(x, (1, 2), value=0.5),
            F.pad(matrix(x), (1, -1, 0, 2)),
        ),
    ),
    "by index": (
        "embedding gather index scatter scatter_add",
        lambda x: (
            F.embedding(rows(x), TABLE),
            TABLE[rows(x)],
            TABLE[rows(x), rows(x) - 3],
            x[:, [2, 0, -1]],
            matrix(x)[:, [0, -1, 1], [0, 1, -1]],
            x.gather(1, rows(x).unsqueeze(1)),
            x.scatter(1, rows(x).unsqueeze(1), 5.0),
            x.scatter(1, rows(x).unsqueeze(1), x * 2),
            x.scatter_add(1, whole(x) % 6, x),
        ),
    ),
    "decomposed": (
        "sym_size",
        lambda x: (
            F.silu(x),
            F.gelu(x),
            F.elu(x),
            F.leaky_relu(x),
            F.mish(x),
            F.glu(x, -1),
            F.prelu(x, TABLE[0, :1]),
            F.group_norm(x, 2),
            F.rms_norm(x, (6,)),
            x.logsumexp(-1),
            x.var(-1),
            x.norm(dim=-1),
            torch.lerp(x, x.flip(-1), 0.3),
            torch.addcmul(x, x, x, value=0.5),
            F.one_hot(rows(x), 4).float(),
            torch.einsum("bij,bik->bjk", matrix(x), matrix(x)),
            F.scaled_dot_product_attention(matrix(x), matrix(x), matrix(x)),
            F.max_pool1d(matrix(x), 2),
        ),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_rules_give_what_torch_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()

    def watched(rule: str) -> Callable[..., Any]:
        def write(at: Any, node: Any, arguments: Any) -> Any:
            used.add(rule)
            return RULES[rule](at, node, arguments)

        return write

    monkeypatch.setattr(onnx_loop, "RULES", {rule: watched(rule) for rule in RULES})
    wanted, step = STEPS[name]
    numbers = torch.Generator().manual_seed(1)
    example = 2 * torch.randn(3, 3, 6, generator=numbers)
    report = lp.export(lp.Recurrent(lambda x, state: (step(x), state)), tmp_path / "m.onnx", example=example, state=())
    assert report.ok
    assert used >= set(wanted.split()), f"not used: {sorted(set(wanted.split()) - used)}"


def test_every_rule_has_a_step() -> None:
    elsewhere = {"shift", *BY_HAND}  # a shift is a state on no cycle: lp.TimeDelay
    assert {rule for wanted, _ in STEPS.values() for rule in wanted.split()} | elsewhere == set(RULES)


aten, prims = torch.ops.aten, torch.ops.prims

# Operators that decompositions use and no trace has: the operator, and its arguments behind the value [rows, 6].
BY_HAND: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "alias": (aten.alias.default, ()),
    "detach": (aten.detach.default, ()),
    "expand_as": (aten.expand_as.default, ("x",)),
    "full_like": (aten.full_like.default, (0.25,)),
    "mv": (aten.mv.default, (torch.arange(6.0),)),
    "new_full": (aten.new_full.default, ([2, 3], 0.25)),
    "new_ones": (aten.new_ones.default, ([2, 3],)),
    "new_zeros": (aten.new_zeros.default, ([2, 3],)),
    "ones_like": (aten.ones_like.default, ()),
    "convert_element_type": (prims.convert_element_type.default, (torch.float64,)),
    "zeros_like": (aten.zeros_like.default, ()),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_rules_for_decompositions_give_what_torch_gives(name: str) -> None:
    target, others = BY_HAND[name]
    family = FakeTensorFamily((6,))
    graph = fx.Graph()
    rows_of_graph = graph.placeholder("rows")
    rows_of_graph.meta["val"] = family.rows
    x = graph.placeholder("x")
    x.meta["val"] = family.tensor((6,), torch.float32, torch.device("cpu"), rows=True)
    constants = [other for other in others if isinstance(other, Tensor)]
    places = [graph.placeholder("weight") for _ in constants]
    for place, value in zip(places, constants, strict=True):
        place.meta["val"] = family.tensor(value.shape, value.dtype, value.device, rows=False)
    of_graph = [x if other == "x" else other for other in others] if not constants else places
    graph.output((call(graph, family, target, x, *of_graph),))

    value = torch.randn(5, 6)
    wanted = target(value, *(value if isinstance(other, str) else other for other in others))
    model = OnnxModel()
    nodes = OnnxGraph(model)
    rows_name = nodes.size_of(model.name("x"), 0)
    writer = StepWriter(nodes, rows_name, family, {name: RULES[name]})
    (result,) = writer.write(graph, ["x", *(nodes.constant(constant) for constant in constants)])
    nodes("Identity", result, name="result")
    helper = onnx.helper
    ends = [("x", value.dtype, [None, 6]), ("result", wanted.dtype, None)]
    infos = [helper.make_tensor_value_info(end, element_type(dtype), shape) for end, dtype, shape in ends]
    made = helper.make_graph(nodes.nodes, "hand", infos[:1], infos[1:], initializer=model.constants)
    whole = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": value.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), wanted)
