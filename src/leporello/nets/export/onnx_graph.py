"""`OnnxModel` and `OnnxGraph`: an ONNX model that is written node by node, values by their names.

Constants belong to the model; a graph inside of a Scan reads them, and the values of the graph around it, by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from leporello.errors import MissingPackage

OPSET = 18
IR_VERSION = 8  # that of opset 18: readers since the end of 2022 know it

ELEMENT_TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.bool: "BOOL",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.uint8: "UINT8",
}


def onnx_package() -> ModuleType:
    """The package onnx, with its helpers."""
    try:
        import onnx.checker
        import onnx.helper
    except ImportError as error:
        raise _missing("onnx") from error
    return onnx


def onnxruntime_package() -> ModuleType:
    """The package onnxruntime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing("onnxruntime") from error
    return onnxruntime


def _missing(package: str) -> MissingPackage:
    return MissingPackage(f"an export to ONNX needs the package {package}.", tries="pip install 'leporello[export]'")


def element_type(dtype: torch.dtype) -> int:
    """The number by which ONNX knows a dtype."""
    return int(onnx_package().TensorProto.DataType.Value(ELEMENT_TYPES[dtype]))


class OnnxModel:
    """What all graphs of a model share: constants, and the names in use."""

    def __init__(self) -> None:
        self.onnx = onnx_package()
        self.constants: list[Any] = []  # TensorProto
        self._names: set[str] = set()
        self._constant_names: dict[Any, str] = {}
        self._held: list[Tensor] = []  # so that no id is used twice
        self.lines: dict[str, str] = {}  # of nodes: the user's line that they come from

    def name(self, wanted: str) -> str:
        """A name that nothing in the model has yet: this one, or with a number behind it."""
        wanted = re.sub(r"[^\w.]", "_", wanted) or "value"
        name, number = wanted, 1
        while name in self._names:
            name, number = f"{wanted}_{number}", number + 1
        self._names.add(name)
        return name

    def constant(self, value: Any, dtype: torch.dtype | None = None, name: str = "constant") -> str:
        """The name of a constant; equal small ones, and the same tensor, are stored once.

        value   a tensor, a number or a list of numbers
        """
        tensor = torch.as_tensor(value, dtype=dtype).detach().resolve_neg()
        small = tensor.numel() <= 16
        key: Any = (tensor.dtype, tuple(tensor.shape), repr(tensor.tolist())) if small else id(value)
        if name != "constant":
            key = (name, id(value))
        if key not in self._constant_names:
            if isinstance(value, Tensor):
                self._held.append(value)
            self._constant_names[key] = self.name(name)
            self.constants.append(self._stored(tensor, self._constant_names[key]))
        return self._constant_names[key]

    def _stored(self, tensor: Tensor, name: str) -> Any:
        whole = tensor.to("cpu").contiguous()
        data = whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
        return self.onnx.helper.make_tensor(name, element_type(tensor.dtype), list(tensor.shape), data, raw=True)


class OnnxGraph:
    """Nodes of one graph of a model, in order.

    line    the user's line that new nodes come from; None for those that come from no line
    label   what the result of the next node is called, if it has a name
    """

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.nodes: list[Any] = []
        self.line: str | None = None
        self.label: str | None = None

    def __call__(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add an operator with one result, and return the name of the result."""
        return self.several(kind, *inputs, names=[name or self.label or kind.lower()], **attributes)[0]

    def several(self, kind: str, *inputs: str, names: Sequence[str], **attributes: Any) -> list[str]:
        """Add an operator with several results, and return their names.

        names   wanted ones; "" for a result that nothing reads
        """
        outputs = [self.model.name(name) if name else "" for name in names]
        node = self.model.onnx.helper.make_node(kind, list(inputs), outputs, name=outputs[0], **attributes)
        if self.line is not None:
            self.model.lines[node.name] = self.line
        self.nodes.append(node)
        return outputs

    def constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        return self.model.constant(value, dtype)

    def ints(self, *values: int) -> str:
        """A constant list of integers."""
        return self.model.constant(list(values), torch.int64)

    def sizes(self, *parts: int | str) -> str:
        """A list of integers, of which some are numbers and others the names of lists of one."""
        if all(isinstance(part, int) for part in parts):
            return self.ints(*parts)  # type: ignore[arg-type]
        lists = [part if isinstance(part, str) else self.ints(part) for part in parts]
        return lists[0] if len(lists) == 1 else self("Concat", *lists, axis=0, name="sizes")

    def size_of(self, value: str, axis: int) -> str:
        """The size of one axis, as a list of one integer."""
        return self("Shape", value, start=axis, end=axis + 1, name="size")

    def cast(self, value: str, dtype: torch.dtype) -> str:
        return self("Cast", value, to=element_type(dtype), name=self.label or "cast")

    def reshape(self, value: str, *sizes: int | str) -> str:
        return self("Reshape", value, self.sizes(*sizes))

    def transpose(self, value: str, *order: int) -> str:
        return value if list(order) == sorted(order) else self("Transpose", value, perm=list(order))

    def front(self, value: str, axis: int, axes: int) -> str:
        """A value with one of its axes moved to the front."""
        return self.transpose(value, axis, *(one for one in range(axes) if one != axis))

    def back(self, value: str, axis: int, axes: int) -> str:
        """A value with its first axis moved to this place."""
        rest = list(range(1, axes))
        return self.transpose(value, *rest[:axis], 0, *rest[axis:])
