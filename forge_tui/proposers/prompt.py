"""What a model is asked, as deterministic text: the stable part first, so that providers can cache it.

The words are in templates (`book`), the facts are made here. Every section has a hard cap in tokens, a person's own
templates included; equal tasks give equal bytes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Node, Record, Verdict
from forge_tui.proposers import book, card, device_facts, resources, strategies
from forge_tui.proposers.tokens import cap, count
from forge_tui.proposers.words import first_words, microseconds

#: most tokens of each section, from the most to the least stable
CAPS = {"system": 4600, "card": 3400, "lineage": 900, "siblings": 500, "kernels": 9000, "task": 900}
#: a kernel to work on is shown whole, or the reply could not keep its rest; others only where there is room beside it
CAP_SOURCE, ROOM_FOR_OTHERS = 8000, 2800
#: of two kernels to merge together, what is said about each included
CAP_PAIR, CAP_ABOUT, CAP_SETTING = 7900, 400, 60
CAP_ERRORS = 500
MAX_ANCESTORS, MAX_SIBLINGS, SIBLING_WORDS, MAX_ERRORS, MAX_FAMILIES = 8, 6, 25, 3, 8
#: drafts that failed before a plain kernel is asked for
PLAIN_AFTER = 3
#: lines of a source from which on a reply may be edits of it
EDITS_FROM, REPAIR_EDITS_FROM = 250, 100
EXAMPLES = {"cuda": ("example.cu", "example_split.cu"), "cpp": ("example.cpp", "example_split.cpp")}
#: edges on which an approach was chosen
WRITTEN = (Edge.DRAFT, Edge.IMPROVE, Edge.REWRITE)

_ERROR = re.compile(r"(?:\((\d+)\)|:(\d+)(?::\d+)?)\s*:\s*(?:fatal |catastrophic )?error\b")
_WHAT = {
    Verdict.COMPILE_ERROR: "It does not compile", Verdict.REFUSED: "It breaks the contract",
    Verdict.REJECTED: "It was rejected", Verdict.CRASHED: "It crashed", Verdict.TIMED_OUT: "It did not end in time",
}  # fmt: skip


class Prompt(Record, frozen=True, kw_only=True):
    """Three parts, from the most to the least stable."""

    system: str
    """Role, contract, device: equal for every call of a session."""
    card: str
    """The target: equal for every call about it."""
    request: str
    """Lineage, sources, and what is asked."""

    @property
    def text(self) -> str:
        """Everything, as the ledger keeps it."""
        return f"{self.system}\n{self.card}\n{self.request}"

    def messages(self, *, markers: bool) -> list[dict[str, Any]]:
        """Chat messages; `markers` adds the cache marks that Anthropic's models want."""
        if not markers:
            return [
                {"role": "system", "content": self.system},
                {"role": "user", "content": f"{self.card}\n{self.request}"},
            ]
        mark = {"cache_control": {"type": "ephemeral"}}
        return [
            {"role": "system", "content": [{"type": "text", "text": self.system, **mark}]},
            {"role": "user", "content": [
                {"type": "text", "text": self.card, **mark}, {"type": "text", "text": self.request},
            ]},
        ]  # fmt: skip


def render(task: Task, templates: book.PromptBook | None = None) -> Prompt:
    """The prompt for a task.

    Raises:
        ConfigError: a person's own template does not work.
    """
    templates = templates or book.packaged()
    values = facts(task, templates)
    sections = [_section(templates, name, values) for name in ("lineage", "siblings", "kernels")]
    sections.append(_section(templates, f"task_{task.edge}", values, "task"))
    return Prompt(
        system=_section(templates, "system", values), card=_section(templates, "card", values),
        request="\n".join(text for text in sections if text),
    )  # fmt: skip


def _section(templates: book.PromptBook, name: str, values: Mapping[str, Any], kind: str = "") -> str:
    text = templates.render(name, values).strip("\n")
    return cap(text, CAPS[kind or name]) + "\n" if text else ""


def facts(task: Task, templates: book.PromptBook) -> dict[str, Any]:
    """Everything that templates may use, by name."""
    device, language = task.device, task.device.language
    return {
        "language": language, "fence": "cuda" if language == "cuda" else "cpp", "edge": str(task.edge),
        "examples": [templates.raw(name) for name in EXAMPLES[language]],
        "moves": [{"name": s.name, "text": s.text} for s in strategies.CATALOGUE if language in s.languages],
        **device_facts.values(device), **card.values(task.target, device, task.nodes), **_history(task),
        "kernels": _kernels(task), **_asked(task),
    }  # fmt: skip


# ---- history


def _history(task: Task) -> dict[str, Any]:
    best, here = task.best, _places(task)
    failures = [
        node for node in task.nodes
        if node.parent in here and node.evaluation is not None and node.edge is not Edge.TUNE
        and not node.evaluation.verdict.right and node != task.failed
    ]  # fmt: skip
    siblings = [n for n in task.nodes if n.parent in here and n.edge in WRITTEN and n.family]
    return {
        "lineage": [_step(node) for node in task.lineage[:MAX_ANCESTORS]],
        "elsewhere": _step(best) if best is not None and best not in task.lineage else None,
        "failures": [first_words(f"{_idea(n)} -> {_effect(n)}", SIBLING_WORDS) for n in failures[-MAX_SIBLINGS:]],
        "families": _families(siblings, None) if task.edge is not Edge.REPAIR else [],
        "every_family": _families(task.nodes, task.best or task.parent),
    }


def _families(nodes: Iterable[Node], first: Node | None) -> list[str]:
    """Approaches of these nodes: that of the first one, then by how often and how lately they were taken."""
    taken: Counter[str] = Counter()
    lately: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.family.strip():
            name = _family(node)
            taken[name] += 1
            lately[name] = number
    lead = _family(first) if first is not None else ""
    return sorted(taken, key=lambda name: (name != lead, -taken[name], -lately[name]))[:MAX_FAMILIES]


def _family(node: Node) -> str:
    return cap(first_words(node.family, 6), 24)


def _step(node: Node) -> dict[str, str]:
    return {"idea": _idea(node), "effect": _effect(node)}


def _places(task: Task) -> set[int | None]:
    """The parent, and the same source at its other settings."""
    parent = task.parent
    if parent is None:
        return {None}
    return {parent.id, *(node.id for node in task.nodes if node.source == parent.source)}


def _idea(node: Node) -> str:
    return cap(" ".join((node.idea or node.family or "no description").split()), 50)


def _effect(node: Node) -> str:
    evaluation = node.evaluation
    if evaluation is None:
        return "being measured"
    if evaluation.verdict.right and evaluation.speedup is not None and math.isfinite(evaluation.speedup):
        time = f", {microseconds(evaluation.time_us)}" if evaluation.time_us else ""
        return f"{evaluation.speedup:.3f}x{time}"
    reason = " ".join(evaluation.reason.split())
    return cap(f"{evaluation.verdict.replace('_', ' ')}: {reason}" if reason else str(evaluation.verdict), 60)


# ---- sources


def _kernels(task: Task) -> list[dict[str, Any]]:
    """The kernel to work on, and one more where the edge wants it or there is room."""
    if task.edge is Edge.REPAIR and task.failed is not None:
        return [_kernel("The kernel to repair", task.failed, task, effect=False)]
    parent = task.parent
    if parent is None:
        return []
    if task.edge is Edge.MERGE and task.other is not None:
        mine, theirs = _shared(CAP_PAIR, count(parent.source.strip()), count(task.other.source.strip()))
        return [_kernel("The kernel to improve", parent, task, limit=mine),
                _kernel("The kernel to combine it with", task.other, task, limit=theirs)]  # fmt: skip
    shown = [_kernel("The kernel to improve", parent, task)]
    room = ROOM_FOR_OTHERS - count(shown[0]["source"])
    best = task.best
    if best is not None and best.source != parent.source and count(best.source) <= room:
        shown.append(_kernel("The best kernel so far", best, task))
    return shown


def _shared(room: int, first: int, second: int) -> tuple[int, int]:
    """What two texts of these lengths may have of the room: half of it at least, and what the other one leaves."""
    half = room // 2
    return max(half, room - second), max(half, room - first)


def _kernel(title: str, node: Node, task: Task, *, effect: bool = True, limit: int = CAP_SOURCE) -> dict[str, Any]:
    return {
        "title": title, "effect": _effect(node) if effect else "", "source": cap(node.source.strip(), limit),
        "setting": cap(", ".join(f"{k}={v}" for k, v in sorted(node.tunables.items())), CAP_SETTING),
        "resources": _within(CAP_ABOUT, resources.sentences(node, task.target, task.device)),
    }  # fmt: skip


def _within(limit: int, sentences: list[str]) -> list[str]:
    """As many of them as fit."""
    kept = []
    for sentence in sentences:
        limit -= count(sentence) + 2
        if limit < 0:
            break
        kept.append(sentence)
    return kept


# ---- what is asked


def base(task: Task) -> str:
    """The source that edits in a reply are of; empty where there is none."""
    if task.edge is Edge.REPAIR and task.failed is not None:
        return task.failed.source
    return task.parent.source if task.parent is not None else ""


def shown(task: Task) -> tuple[str, ...]:
    """Other sources that the author may have been shown: a copy of one is no answer."""
    nodes = (task.failed, task.parent, task.other, task.best)
    return tuple(dict.fromkeys(node.source for node in nodes if node is not None and node.source != base(task)))


def _asked(task: Task) -> dict[str, Any]:
    strategy = None
    if task.edge is Edge.IMPROVE:
        here = _places(task)
        tried = tuple(n.family for n in task.nodes if n.parent in here and n.family)
        strategy = strategies.choose(task.target.bound, task.device.language, task.seed, tried)
    failed = task.failed
    lines = base(task).count("\n")
    return {
        "plain": _wants_plain(task), "strategy": {"name": strategy.name, "text": strategy.text} if strategy else None,
        "floor_share": _floor_share(task), "origin": _origin(task),
        "edits": lines >= (REPAIR_EDITS_FROM if task.edge is Edge.REPAIR else EDITS_FROM),
        "what": _WHAT.get(failed.evaluation.verdict, "It failed") if failed and failed.evaluation else "It failed",
        "errors": cap(errors(failed), CAP_ERRORS) if failed is not None else "",
    }  # fmt: skip


def _origin(task: Task) -> str:
    """Where a failed kernel was found, if it was written for another target and then perhaps repaired in vain."""
    by_id = {node.id: node for node in task.nodes}
    node = task.failed
    while node is not None and node.edge is Edge.REPAIR and node.repairs is not None:
        node = by_id.get(node.repairs)
    return _idea(node) if node is not None and node.edge is Edge.TRANSFER else ""


def _wants_plain(task: Task) -> bool:
    failed = sum(1 for n in task.nodes if n.edge is Edge.DRAFT and n.evaluation and not n.evaluation.verdict.right)
    return failed >= PLAIN_AFTER and not any(n.evaluation and n.evaluation.verdict.right for n in task.nodes)


def _floor_share(task: Task) -> str:
    evaluation = task.parent.evaluation if task.parent is not None else None
    if evaluation is None or not evaluation.time_us or not task.target.floor_us:
        return ""
    return f"{min(1.0, task.target.floor_us / evaluation.time_us):.0%}"


def errors(failed: Node) -> str:
    """The reason and the first distinct errors of a failed node, each with its source line."""
    evaluation = failed.evaluation
    if evaluation is None:
        return ""
    lines = failed.source.splitlines()
    found: list[str] = []
    seen: set[str] = set()
    for line in evaluation.log.splitlines():
        match = _ERROR.search(line)
        if not match:
            continue
        text = " ".join(line[match.end():].split())
        if text in seen:
            continue
        seen.add(text)
        number = int(match[1] or match[2])
        shown = f"line {number}: {cap(lines[number - 1].strip(), 60)}\n    " if 0 < number <= len(lines) else ""
        found.append(f"{shown}error{cap(text, 80)}")
        if len(found) == MAX_ERRORS:
            break
    reason = cap(" ".join(evaluation.reason.split()), 120)
    if not found and evaluation.log.strip():
        # no compiler error: the judge's pattern of wrong values, a signal, the sandbox's words
        found = [cap(evaluation.log.strip(), 250)]
    return "\n".join([reason, *found] if reason else found)
