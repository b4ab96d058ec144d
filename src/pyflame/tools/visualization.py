"""Pictures of graphs and models, as SVG, as a page to click through, and for Graphviz."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyflame.compiling.compiled import CompiledFunction
from pyflame.evaluation import Work, graphs
from pyflame.exporting import evaluation_graph
from pyflame.inspection import Graph as LazyGraph
from pyflame.ops.core import Handle
from pyflame.runtime_graph import to_graph
from pyflame.tools.drawing.boxes import Drawing, drawing_of, fold, module_paths
from pyflame.tools.drawing.page import page_of
from pyflame.tools.drawing.svg import svg_of
from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

__all__ = ["GraphVisualizer", "visualize_graph", "visualize_model"]

Format = Literal["svg", "html", "dot"]


class GraphVisualizer:
    """Draws a graph: operators in layers from top to bottom, modules as boxes that fold.

    Args:
        graph: A lazy tensor, what `pf.get_graph` gives, a graph of `pyflame_rt`, a compiled function (its newest
            trace), or the path of an .onnx or .pfm file.
        show_shapes: Write sizes into the boxes.
        show_dtypes: Write element types into the boxes.
        show_weights: Draw weights as boxes of their own.
        depth: Fold modules that lie deeper than this; None folds only as much as `max_nodes` asks for.
        collapse: Paths of modules to fold, such as "layer1.0".
        max_nodes: Fold modules, the deepest first, until no more boxes than this are left in an SVG.

    Example:
        >>> import pyflame as pf
        >>> picture = pf.tools.GraphVisualizer(pf.relu(pf.ones([2, 3]) + 1.0))
        >>> picture.to_svg().startswith("<svg")
        True
        >>> "Relu" in picture.to_html()
        True
    """

    @names_arguments
    def __init__(
        self,
        graph: Any,
        *,
        show_shapes: bool = True,
        show_dtypes: bool = True,
        show_weights: bool = False,
        depth: int | None = None,
        collapse: Iterable[str] = (),
        max_nodes: int = 500,
    ) -> None:
        if max_nodes < 1:
            raise ValueError(f"max_nodes must be at least 1. Received: {max_nodes}")
        source = _runtime_graph(graph)
        self.drawing = drawing_of(source, shapes=show_shapes, dtypes=show_dtypes, weights=show_weights)
        self.depth, self.max_nodes = depth, max_nodes
        self._collapse = {tuple(path.split(".")) for path in collapse}
        unknown = self._collapse - module_paths(self.drawing)
        if unknown:
            known = sorted(".".join(path) for path in module_paths(self.drawing))
            missing = sorted(".".join(path) for path in unknown)
            raise ValueError(f"there is no module {missing[0]!r} in this graph. Modules: {', '.join(known) or 'none'}")

    def folded(self) -> Drawing:
        """What an SVG shows: modules folded as asked for, and as far as `max_nodes` needs."""
        paths = module_paths(self.drawing)
        deepest = max((len(path) for path in paths), default=0)
        start = deepest if self.depth is None else max(self.depth, 0)
        made = self.drawing
        for level in range(start, -1, -1):
            closed = self._collapse | {path for path in paths if len(path) > level}
            made = fold(self.drawing, closed)
            if len(made.boxes) <= self.max_nodes:
                return made
        raise ValueError(
            f"the graph has {len(made.boxes)} boxes with all modules folded, max_nodes allows {self.max_nodes}: "
            "raise it, or draw a part of the model"
        )

    def to_svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """The picture as SVG; written to a file too when a path is given."""
        return _written(svg_of(self.folded()), path)

    def to_html(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> str:
        """A page that needs no other file: modules fold and unfold by a click, boxes are found by name."""
        opened = 1 if self.depth is None else self.depth
        closed = self._collapse | {p for p in module_paths(self.drawing) if len(p) > opened}
        return _written(page_of(self.drawing, closed, title or self.drawing.title or "graph"), path)

    def to_dot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The graph in Graphviz's language."""
        drawing = self.folded()
        names = {key: f"n{i}" for i, key in enumerate(drawing.boxes)}
        lines = ["digraph {", "  node [shape=box];"]
        for key, box in drawing.boxes.items():
            label = "\n".join((box.title, *box.lines))
            lines.append(f"  {names[key]} [label={_quoted(label)}, tooltip={_quoted(box.tip or box.title)}];")
        lines += [f"  {names[a]} -> {names[b]} [tooltip={_quoted(what)}];" for a, b, what in drawing.arrows]
        return _written("\n".join([*lines, "}", ""]), path)

    def _repr_svg_(self) -> str:
        return self.to_svg()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        Path(path).write_text(text, "utf-8")
    return text


def _runtime_graph(source: Any) -> Graph:
    if isinstance(source, Graph):
        return source
    if isinstance(source, Handle):
        with graphs:
            work = Work([source._value], exact=True)
            if not work.exprs:
                raise ValueError("the tensor is evaluated, so there is no graph: draw it before, or draw the model")
            return to_graph(work.exprs, work.leaves, work.outputs)
    if isinstance(source, LazyGraph):
        return source.to_runtime()
    if isinstance(source, CompiledFunction):
        return source.latest_graph()
    if isinstance(source, str | Path):
        from pyflame_rt.loading import load_graph

        return load_graph(source)[0]
    raise TypeError(f"a tensor, a graph, a compiled function or a path is drawn. Received: {type(source).__name__}")


@names_arguments
def visualize_graph(
    graph: Any, output_path: str | os.PathLike[str] | None = None, format: Format | None = None, **options: Any
) -> str:
    """Draw a graph; returns the text of the picture.

    Args:
        graph: As for :class:`GraphVisualizer`.
        output_path: Where to write it; None writes nothing.
        format: "svg", "html" or "dot"; by default what the path's ending says, else SVG.
        options: Of :class:`GraphVisualizer`.

    Example:
        >>> import pyflame as pf
        >>> pf.tools.visualize_graph(pf.ones([2]) * 2, format="dot").split()[0]
        'digraph'
    """
    kind = format or (Path(output_path).suffix.lstrip(".") if output_path is not None else "svg")
    draw = {"svg": GraphVisualizer.to_svg, "html": GraphVisualizer.to_html, "dot": GraphVisualizer.to_dot}
    if kind not in draw:
        raise UnsupportedFormatError(f"pictures are svg, html or dot. Received: {kind!r}")
    return draw[kind](GraphVisualizer(graph, **options), output_path)


@names_arguments
def visualize_model(
    model: Any,
    example: Any,
    output_path: str | os.PathLike[str] | None = None,
    format: Format | None = None,
    **options: Any,
) -> str:
    """Draw what a model does with an example, in evaluation mode; modules can be folded.

    Args:
        model: A module, or any function of tensors.
        example: One argument, or a tuple of them.
        output_path: Where to write the picture; None writes nothing.
        format: As for :func:`visualize_graph`.
        options: Of :class:`GraphVisualizer`.

    Example:
        >>> import pyflame as pf
        >>> net = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.ReLU())
        >>> "1 operators" in pf.tools.visualize_model(net, pf.ones([1, 4]), depth=0)
        True
    """
    arguments = example if isinstance(example, tuple) else (example,)
    return visualize_graph(evaluation_graph(model, arguments), output_path, format, **options)
