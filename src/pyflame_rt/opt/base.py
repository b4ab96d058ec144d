"""Pass: one transformation of a graph; PassResult: what it did."""

from __future__ import annotations

from dataclasses import field, fields
from typing import TYPE_CHECKING

from pyflame_rt.graph.records import dataclass
from pyflame_rt.options import OptLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.graph import Graph
    from pyflame_rt.opt.editor import Editor

__all__ = ["EditingPass", "Pass", "PassResult", "PassStats", "Rewrite", "description_of", "name_of"]


@dataclass(slots=True)
class PassStats:
    """What passes changed, counted.

    Attributes:
        nodes_removed: nodes that are gone.
        nodes_added: nodes that are new.
        nodes_fused: patterns that became one node each.
        constants_folded: nodes that were computed.
        initializers_removed: constants nobody read.

    Example:
        >>> PassStats(nodes_removed=2) + PassStats(nodes_removed=1, nodes_fused=1)
        PassStats(nodes_removed=3, nodes_added=0, nodes_fused=1, constants_folded=0, initializers_removed=0)
    """

    nodes_removed: int = 0
    nodes_added: int = 0
    nodes_fused: int = 0
    constants_folded: int = 0
    initializers_removed: int = 0

    def __add__(self, other: PassStats) -> PassStats:
        return PassStats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(PassStats)))

    def __str__(self) -> str:
        counts = [f"{f.name.replace('_', ' ')} {n}" for f in fields(self) if (n := getattr(self, f.name))]
        return ", ".join(counts) or "nothing changed"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One application of a rule.

    Attributes:
        rule: its name.
        removed: names of the nodes it replaced.
        made: names of the nodes that stand for them.
    """

    rule: str
    removed: tuple[str, ...]
    made: tuple[str, ...] = ()


@dataclass(slots=True)
class PassResult:
    """What a pass, or several in a row, did.

    Attributes:
        modified: whether the graph is another one now.
        stats: counts.
        warnings: what was left undone and should be known.
        rewrites: every application of a rule, in order.
        seconds: time taken, by pass.

    Example:
        >>> PassResult().modified, str(PassResult().stats)
        (False, 'nothing changed')
    """

    modified: bool = False
    stats: PassStats = field(default_factory=PassStats)
    warnings: list[str] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, other: PassResult) -> None:
        """Count what another pass did as well."""
        self.modified = self.modified or other.modified
        self.stats = self.stats + other.stats
        self.warnings += [text for text in other.warnings if text not in self.warnings]
        self.rewrites += other.rewrites
        for name, seconds in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def origins(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """By name of a node that a rule made: the last rule, and the nodes of the model it stands for."""
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        for rewrite in self.rewrites:
            before = [old for name in rewrite.removed for old in found.get(name, ("", (name,)))[1]]
            found |= dict.fromkeys(rewrite.made, (rewrite.rule, tuple(dict.fromkeys(before))))
        return found


class Pass:
    """A transformation of a graph, in place; subclass it to write your own.

    Example:
        >>> class Renamed(Pass):
        ...     def name(self):
        ...         return "Renamed"
        ...     def run(self, graph):
        ...         graph.name = "renamed"
        ...         return PassResult(modified=True)
        >>> Renamed().should_run(OptLevel.NONE), Renamed().should_run(OptLevel.BASIC)
        (False, True)
    """

    def name(self) -> str:
        """Under which it is registered; the class's own name unless told."""
        return type(self).__name__

    def description(self) -> str:
        """One sentence; the first line of the docstring unless told."""
        return (type(self).__doc__ or "").strip().partition("\n")[0]

    def run(self, graph: Graph) -> PassResult:
        """Change the graph and say what was done."""
        raise NotImplementedError(f"{type(self).__name__} has no run(graph)")

    def should_run(self, level: OptLevel) -> bool:
        """Whether it belongs to a level."""
        return level >= OptLevel.BASIC


class EditingPass(Pass):
    """A pass that works on an Editor, which passes in a row share: types are inferred once."""

    def run(self, graph: Graph) -> PassResult:
        """Change the graph and say what was done."""
        from pyflame_rt.opt.editor import Editor

        editor = Editor(graph)
        result = self.edit(editor)
        editor.commit()
        return result

    def edit(self, editor: Editor) -> PassResult:
        """Change the editor's graph."""
        raise NotImplementedError(f"{type(self).__name__} has no edit(editor)")


def name_of(one: Pass) -> str:
    """The name of a pass, whether its class has it as a method or as a plain attribute."""
    return str(one.name() if callable(one.name) else one.name)


def description_of(one: Pass) -> str:
    """The description of a pass, whether it is a method or a plain attribute."""
    return str(one.description() if callable(one.description) else one.description)


def all_graphs(graph: Graph) -> Iterator[Graph]:
    """A graph and every graph inside it."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(current.subgraphs())
