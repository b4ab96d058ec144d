"""Read the text form of a graph back (see :mod:`pyflame_rt.graph.text`)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.dim import DimLike, dim_from_text
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import DTypeMismatchError, InvalidModelError
from pyflame_rt.graph.graph import Graph
from pyflame_rt.graph.info import TensorInfo
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.node import Node
from pyflame_rt.graph.tensor import Tensor
from pyflame_rt.graph.types import AnyType, MapType, OptionalType, SequenceType, Shape, TensorType, ValueType

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["parse_graph"]

_WORD = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_.:/]*[A-Za-z0-9_./])?")
_SPACE = re.compile(r"[ \t\r\n]*")
_MAX_DEPTH = 64
_json = json.JSONDecoder()


@names_arguments
def parse_graph(text: str, weights: Mapping[str, Tensor] | None = None) -> Graph:
    """The graph a text describes; ``weights`` supplies the constants written as ``@name``.

    Example:
        >>> g = parse_graph('graph "g" { input x: float32[N, 3]  y = Relu(x)  output y: float32[N, 3] }')
        >>> g.nodes[0], str(g.inputs[0].type)
        (?: Relu(x) -> y, 'float32[N, 3]')
    """
    parser = _Parser(text, {} if weights is None else weights)
    graph = parser.graph(0)
    parser.end()
    return graph


class _Parser:
    def __init__(self, text: str, weights: Mapping[str, Tensor]) -> None:
        self.text = text
        self.at = 0
        self.weights = weights

    # ------------------------------------------------------------------ characters

    def fail(self, wanted: str) -> InvalidModelError:
        line = self.text.count("\n", 0, self.at) + 1
        found = self.text[self.at : self.at + 20].split("\n")[0]
        return InvalidModelError(f"graph text, line {line}: expected {wanted}, found {found!r}")

    def space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self, token: str) -> bool:
        self.space()
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.at += len(token)
        return True

    def need(self, token: str) -> None:
        if not self.take(token):
            raise self.fail(repr(token))

    def word(self, what: str = "a word") -> str:
        self.space()
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise self.fail(what)
        self.at = match.end()
        return match.group()

    def json(self, what: str = "a value") -> Any:
        self.space()
        try:
            value, self.at = _json.raw_decode(self.text, self.at)
        except (ValueError, RecursionError) as error:
            raise self.fail(what) from error
        return value

    def name(self) -> str:
        self.space()
        if self.peek('"'):
            return str(self.json("a name"))
        if self.take("-"):
            return ""
        return self.word("a name")

    def end(self) -> None:
        self.space()
        if self.at != len(self.text):
            raise self.fail("the end")

    # ------------------------------------------------------------------ graphs

    def graph(self, depth: int) -> Graph:
        if depth > _MAX_DEPTH:
            raise InvalidModelError(f"graph text: graphs are nested more than {_MAX_DEPTH} deep")
        self.need("graph")
        graph = Graph(str(self.json("the graph's name")))
        if self.take("opset("):
            while not self.take(")"):
                domain = str(self.json("a domain"))
                self.need(":")
                graph.opsets[domain] = int(self.json("a version"))
                self.take(",")
        self.need("{")
        while not self.take("}"):
            self.statement(graph, depth)
        return graph

    def statement(self, graph: Graph, depth: int) -> None:
        start = self.at
        keyword = self.word() if not self.peek('"') and not self.peek("-") else ""
        followed = not (self.peek("=") or self.peek(","))
        if keyword in ("input", "output", "init", "meta", "type") and followed:
            getattr(self, f"_{keyword}")(graph)
            return
        self.at = start
        self._node(graph, depth)

    def _input(self, graph: Graph) -> None:
        graph.inputs.append(self.info())

    def _output(self, graph: Graph) -> None:
        graph.outputs.append(self.info())

    def _type(self, graph: Graph) -> None:
        info = self.info()
        graph.types[info.name] = info.type

    def _meta(self, graph: Graph) -> None:
        key = str(self.json("a key"))
        self.need("=")
        graph.metadata[key] = str(self.json("a text"))

    def _init(self, graph: Graph) -> None:
        name = self.name()
        self.need(":")
        kind = self.tensor_type()
        self.need("=")
        graph.initializers[name] = self.stored(self.name(), kind) if self.take("@") else self.elements(kind)

    def _node(self, graph: Graph, depth: int) -> None:
        outputs = [self.name()]
        while self.take(","):
            outputs.append(self.name())
        self.need("=")
        domain, op_type = self._operator()
        attributes: dict[str, Any] = {}
        if self.take("["):
            while not self.take("]"):
                key = self.word("an attribute")
                self.need("=")
                attributes[key] = self.attribute(depth)
                self.take(",")
        self.need("(")
        inputs: list[str] = []
        while not self.take(")"):
            inputs.append(self.name())
            self.take(",")
        graph.nodes.append(Node(self._comment(), op_type, inputs, outputs, attributes, domain))

    def _operator(self) -> tuple[str, str]:
        text = self.word("an operator")
        domain, _, op_type = text.rpartition("::")
        return domain, op_type

    def _comment(self) -> str:
        line_end = self.text.find("\n", self.at)
        rest = self.text[self.at : line_end if line_end >= 0 else len(self.text)]
        if not rest.startswith("  # "):
            return ""
        self.at += len(rest)
        return rest[4:]

    # ------------------------------------------------------------------ types and values

    def info(self) -> TensorInfo:
        name = self.name()
        self.need(":")
        return TensorInfo(name, type=self.type())

    def type(self) -> ValueType:
        for word, kind in (("seq(", SequenceType), ("optional(", OptionalType)):
            if self.take(word):
                elem = self.type()
                self.need(")")
                return kind(elem)
        if self.take("map("):
            key = self.dtype()
            self.need(",")
            value = self.type()
            self.need(")")
            return MapType(key, value)
        return AnyType() if self.take("?") else self.tensor_type()

    def dtype(self) -> DType:
        try:
            return DType.of(self.word("an element type"))
        except DTypeMismatchError as error:
            raise self.fail("an element type") from error

    def tensor_type(self) -> TensorType:
        dtype = self.dtype()
        if self.take("[*]"):
            return TensorType(dtype, None)
        self.need("[")
        dims: list[DimLike] = []
        while not self.take("]"):
            dims.append(self.dim())
            self.take(",")
        return TensorType(dtype, Shape(dims))

    def dim(self) -> DimLike:
        """Everything up to the comma or bracket that ends it."""
        self.space()
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.json("a quoted name")
                continue
            if depth == 0 and char in ",]":
                break
            depth += {"(": 1, ")": -1}.get(char, 0)
            self.at += 1
        else:
            raise self.fail("',' or ']'")
        return dim_from_text(self.text[start : self.at].strip())

    def stored(self, name: str, kind: TensorType) -> Tensor:
        if name not in self.weights:
            raise InvalidModelError(f"graph text: the constant {name!r} is stored elsewhere; pass it in weights")
        tensor = self.weights[name]
        if tensor.dtype is not kind.dtype or tensor.shape != kind.shape:
            raise InvalidModelError(f"graph text: constant {name!r} is {kind}, the weight given is {tensor!r}")
        return tensor

    def elements(self, kind: TensorType) -> Tensor:
        values = self.json("a list of values")
        try:
            return Tensor(_array(values, kind))
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidModelError(f"graph text: values do not fit {kind}: {error}") from error

    def attribute(self, depth: int) -> Any:
        if self.peek("graph "):
            return self.graph(depth + 1)
        if self.take("tensor("):
            kind = self.tensor_type()
            self.need("=")
            tensor = self.elements(kind)
            self.need(")")
            return tensor
        if self.take("type("):
            kind = self.type()
            self.need(")")
            return kind
        if self.take("list("):
            items: list[Any] = []
            while not self.take(")"):
                items.append(self.attribute(depth))
                self.take(",")
            return items
        if self.take("bytes("):
            data = bytes.fromhex(str(self.json("bytes")))
            self.need(")")
            return data
        return self.json("an attribute")


def _array(values: Any, kind: TensorType) -> np.ndarray[Any, Any]:
    if kind.shape is None or not kind.shape.is_static:
        raise ValueError("a constant needs a static shape")
    if kind.dtype.is_complex:
        values = [complex(*pair) for pair in values]
    if kind.dtype is DType.String:
        flat = np.empty(len(values), dtype=object)
        flat[:] = [str(v) for v in values]
    elif kind.dtype.is_integer:
        flat = np.array(values, dtype=np.uint64 if kind.dtype is DType.UInt64 else np.int64).astype(kind.dtype.numpy)
    else:
        flat = np.array(values).astype(kind.dtype.numpy)
    return flat.reshape(tuple(kind.shape))  # type: ignore[arg-type]
