"""From what a search found to winners: the fastest node of each target whose very file holds up once more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forge_tui.core.ports import Compiler, Confirmer
from forge_tui.core.records import Built, Confirmation, Node, Target, Verdict, Winner
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

#: nodes of one target that are tried; if so many fail, the target's gain is within the noise
MOST_TRIES = 8
#: a confirmation that failed through us is tried this often
_INFRA_TRIES = 2


async def winners(
    store: Store, reader: Reader, session: str, targets: Iterable[Target], compiler: Compiler, confirmer: Confirmer,
    seed: int, log: Callable[[str, str], None], *, resumed: bool = False,
) -> list[Winner]:  # fmt: skip
    """The winner of each target, as the file that was verified and timed; each confirmation is in the store.

    A confirmation of an earlier engine is not made again; with `resumed` that engine was ended in the midst of them,
    and those that failed count among the tries. `log` takes a level and a text.
    """
    found: list[Winner] = []
    for target in targets:
        known = reader.nodes(session, target.id)
        nodes = [n for n in known if _is_faster(n)]
        tries = sum(map(_has_failed, known)) if resumed else 0
        for node in sorted(nodes, key=_speedup, reverse=True):
            if tries >= MOST_TRIES:
                log("warning", f"The {MOST_TRIES} fastest kernels for {target.name} were not confirmed: the rest is "
                               "not tried.")  # fmt: skip
                break
            assert node.evaluation is not None
            built = await compiler.build(target, node.source, node.tunables)
            if not isinstance(built, Built) or built.sha256 != node.evaluation.sha256:
                log("warning", f"Node {node.id} is left out: its build is not the file that was verified.")
                continue
            confirmation = node.evaluation.confirmation
            if confirmation is None or confirmation.sha256 != built.sha256:
                tries += 1
                log("info", f"Node {node.id} of {target.name} is verified and timed once more, in fresh processes.")
                confirmation = await confirm(confirmer, target, built, node, seed)
                if confirmation.verdict is not Verdict.INFRA:
                    store.confirm(session, node.id, confirmation)
            if confirmation.passed:
                if confirmation.unsanitised:
                    log("warning", f"Node {node.id} of {target.name} is unsanitised. {confirmation.unsanitised}")
                # the same file serves the sizes of calls that it was verified at
                found += [
                    Winner(target=item, node_id=node.id, built=built if item is target else built.at(item),
                           unsanitised=confirmation.unsanitised)
                    for item in (target, *(s for s in target.siblings if not s.made))
                ]  # fmt: skip
                break
            log("warning", f"Node {node.id} of {target.name} was not confirmed ({confirmation.verdict}): "
                           f"{confirmation.reason}")  # fmt: skip
    return found


async def confirm(confirmer: Confirmer, target: Target, built: Built, node: Node, seed: int) -> Confirmation:
    """Confirm one file; a failure of ours is tried again."""
    for attempt in range(_INFRA_TRIES):
        # another seed than any evaluation's, and the same in every engine
        drawn = (seed * 1_000_003 + node.id * 101 + 50 + attempt) % 2**31
        found = await confirmer.confirm(target, built, node, drawn)
        if found.verdict is not Verdict.INFRA:
            break
    return found


def _has_failed(node: Node) -> bool:
    found = node.evaluation.confirmation if node.evaluation is not None else None
    return found is not None and not found.passed


def _is_faster(node: Node) -> bool:
    return node.evaluation is not None and node.evaluation.verdict is Verdict.FASTER


def _speedup(node: Node) -> float:
    assert node.evaluation is not None
    return node.evaluation.speedup or 0.0
