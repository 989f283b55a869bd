"""The question that a model would be asked about a target of a session, without asking it."""

from __future__ import annotations

import msgspec

from forge_tui.core.errors import UsageError
from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Node, Target, Verdict
from forge_tui.store.reader import Reader

#: what can be asked of a session as it is
EDGES = (Edge.DRAFT, Edge.IMPROVE, Edge.REPAIR, Edge.REWRITE, Edge.MERGE)


def task_of(
    reader: Reader, session: str, target_name: str | None, edge: Edge | None = None, node_id: int | None = None,
    seed: int = 0,
) -> Task:  # fmt: skip
    """The task for a target: an improvement of its best kernel, or of the node named; a draft where there is none.

    Raises:
        UsageError: there is no such target or node, or nothing that this edge could begin with.
    """
    info = reader.session(session)
    if node_id is not None and edge is Edge.DRAFT:
        raise UsageError(f"A draft begins with no kernel, and --node {node_id} names one.", "Leave one of them out.")
    node = _node(reader.nodes(session), session, node_id) if node_id is not None else None
    target = _target(reader.targets(session), target_name, node)
    if info.device is None:
        raise UsageError(f"Session {session} has no profile yet.")
    nodes = reader.nodes(session, target.id)
    by_id = {one.id: one for one in nodes}
    best = _best(nodes)
    if edge is None:
        edge = Edge.REPAIR if node is not None and _failed(node) else \
            Edge.IMPROVE if (node or best) is not None else Edge.DRAFT  # fmt: skip
    task = Task(target=target, device=info.device, edge=edge, parent=None, failed=None, best=best, lineage=(),
                nodes=tuple(nodes), seed=seed)  # fmt: skip
    if edge is Edge.DRAFT:
        return task
    if edge is Edge.REPAIR:
        return _repair(task, node, by_id)
    parent = node or best
    if parent is None:
        raise UsageError(f"{target.name} has no right kernel to begin with.", "Say --edge draft.")
    if not _speedup(parent):
        hint = "Say --edge repair." if _failed(parent) else "Name a right one."
        raise UsageError(f"Node {parent.id} is no right kernel to begin with.", hint)
    task = msgspec.structs.replace(task, parent=parent, lineage=_lineage(parent, by_id))
    return _merge(task) if edge is Edge.MERGE else task


def _node(nodes: list[Node], session: str, number: int) -> Node:
    for node in nodes:
        if node.id == number:
            return node
    there = f"It has {nodes[0].id} to {nodes[-1].id}." if nodes else "It has none yet."
    raise UsageError(f"Session {session} has no node {number}.", there)


def _target(targets: list[Target], name: str | None, node: Node | None) -> Target:
    """The one that is named, else the node's, else the first."""
    chosen = [target for target in targets if target.called(name)] if name is not None else targets
    if not chosen:
        known = ", ".join(target.name for target in targets)
        raise UsageError(f"There is no target {name!r}." if name else "The session has no target.",
                         f"Targets are {known}." if known else "")  # fmt: skip
    if node is None:
        return chosen[0]
    for target in chosen:
        if target.id == node.target_id:
            return target
    raise UsageError(f"Node {node.id} is no kernel of {chosen[0].name}.", "Leave out --target.")


def _repair(task: Task, node: Node | None, by_id: dict[int, Node]) -> Task:
    failed = node or next((n for n in reversed(task.nodes) if _failed(n)), None)
    if failed is None or not _failed(failed):
        which = f"Node {node.id}" if node is not None else task.target.name
        raise UsageError(f"{which} has nothing to repair.", "Name a failed node by --node.")
    parent = by_id.get(failed.parent) if failed.parent is not None else None
    lineage = _lineage(parent, by_id) if parent is not None else ()
    return msgspec.structs.replace(task, parent=parent, failed=failed, lineage=lineage)


def _merge(task: Task) -> Task:
    assert task.parent is not None
    mine = task.parent
    others = [n for n in task.nodes if _speedup(n) and n.family != mine.family and n.source != mine.source]
    if not others:
        raise UsageError(f"{task.target.name} has no second approach to merge with.")
    return msgspec.structs.replace(task, other=max(others, key=_speedup))


def _failed(node: Node) -> bool:
    return node.evaluation is not None and node.evaluation.verdict.repairable


def _speedup(node: Node) -> float:
    evaluation = node.evaluation
    return (evaluation.speedup or 0.0) if evaluation is not None and evaluation.verdict.right else 0.0


def _best(nodes: list[Node]) -> Node | None:
    faster = [n for n in nodes if n.evaluation is not None and n.evaluation.verdict is Verdict.FASTER]
    right = faster or [n for n in nodes if _speedup(n)]
    return max(right, key=_speedup, default=None)


def _lineage(node: Node, by_id: dict[int, Node]) -> tuple[Node, ...]:
    """The node, its parent, and so on."""
    found: list[Node] = []
    here: Node | None = node
    while here is not None and here not in found:
        found.append(here)
        here = by_id.get(here.parent) if here.parent is not None else None
    return tuple(found)
