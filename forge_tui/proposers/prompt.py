"""What a model is asked, as deterministic text: the stable part first, so that providers can cache it.

Every section has a hard cap in characters; equal tasks give equal bytes.
"""

from __future__ import annotations

import math
import re
from typing import Any

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, Node, Record, Verdict
from forge_tui.proposers import strategies
from forge_tui.proposers.card import device_sheet, target_card
from forge_tui.proposers.contract_text import contract_text
from forge_tui.proposers.words import cap, first_words, microseconds

CAP_SOURCE, CAP_BEST = 16000, 8000
CAP_LINEAGE, CAP_ERRORS = 1600, 1200
MAX_ANCESTORS, MAX_SIBLINGS, SIBLING_WORDS, MAX_ERRORS = 6, 5, 25, 3
#: drafts that failed before a plain kernel is asked for
PLAIN_AFTER = 3
#: edges on which an approach was chosen
WRITTEN = (Edge.DRAFT, Edge.IMPROVE, Edge.REWRITE)

_ERROR = re.compile(r"(?:\((\d+)\)|:(\d+)(?::\d+)?)\s*:\s*(?:fatal |catastrophic )?error\b")


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


def render(task: Task) -> Prompt:
    """The prompt for a task."""
    device = task.device
    return Prompt(
        system=f"{contract_text(device.language)}\n{device_sheet(device)}",
        card=target_card(task.target, device, task.nodes),
        request="\n".join(part for part in (_history(task), _sources(task), _request(task)) if part),
    )


# ---- history


def _history(task: Task) -> str:
    lines = [f"- {_idea(node)} -> {_effect(node)}" for node in reversed(task.lineage[:MAX_ANCESTORS])]
    if task.best is not None and task.best not in task.lineage:
        lines.append(f"- elsewhere, the best so far: {_idea(task.best)} -> {_effect(task.best)}")
    parts = []
    if lines:
        parts.append("# What led here, oldest first\n" + "\n".join(lines))
    here = _places(task)
    failures = [
        node for node in task.nodes
        if node.parent in here and node.evaluation is not None and node.edge is not Edge.TUNE
        and not node.evaluation.verdict.right and node != task.failed
    ]  # fmt: skip
    if failures:
        told = [f"- {first_words(f'{_idea(n)} -> {_effect(n)}', SIBLING_WORDS)}" for n in failures[-MAX_SIBLINGS:]]
        parts.append("# Tried from the same place, without success\n" + "\n".join(told))
    siblings = [n for n in task.nodes if n.parent in here and n.edge in WRITTEN and n.family]
    if siblings and task.edge is not Edge.REPAIR:
        families = sorted({first_words(n.family, 6) for n in siblings})[:8]
        parts.append("# Approaches already taken from the same place\n" + "; ".join(families))
    return "".join(cap(part, CAP_LINEAGE) + "\n" for part in parts)


def _places(task: Task) -> set[int | None]:
    """The parent, and the same source at its other settings."""
    parent = task.parent
    if parent is None:
        return {None}
    return {parent.id, *(node.id for node in task.nodes if node.source == parent.source)}


def _idea(node: Node) -> str:
    text = " ".join((node.idea or node.family or "no description").split())
    return cap(text, 200)


def _effect(node: Node) -> str:
    evaluation = node.evaluation
    if evaluation is None:
        return "being measured"
    if evaluation.verdict.right and evaluation.speedup is not None and math.isfinite(evaluation.speedup):
        time = f", {microseconds(evaluation.time_us)}" if evaluation.time_us else ""
        return f"{evaluation.speedup:.3f}x{time}"
    reason = " ".join(evaluation.reason.split())
    return cap(f"{evaluation.verdict.replace('_', ' ')}: {reason}" if reason else str(evaluation.verdict), 200)


# ---- sources


def _sources(task: Task) -> str:
    language = "cuda" if task.device.language == "cuda" else "cpp"
    parts = []
    if task.edge is Edge.REPAIR and task.failed is not None:
        parts.append(_fenced("# The kernel to repair", task.failed, language, CAP_SOURCE))
    elif task.parent is not None:
        parts.append(_fenced(f"# The kernel to improve ({_effect(task.parent)})", task.parent, language, CAP_SOURCE))
        best = task.best
        if task.edge is Edge.MERGE and task.other is not None:
            title = f"# The kernel to combine it with ({_effect(task.other)})"
            parts.append(_fenced(title, task.other, language, CAP_BEST))
            return "\n".join(parts)
        if best is not None and best.source != task.parent.source:
            parts.append(_fenced(f"# The best kernel so far ({_effect(best)})", best, language, CAP_BEST))
    return "\n".join(parts)


def _fenced(title: str, node: Node, language: str, limit: int) -> str:
    setting = f"\nMeasured with {', '.join(f'{k}={v}' for k, v in sorted(node.tunables.items()))}." \
        if node.tunables else ""  # fmt: skip
    return f"{title}{setting}\n```{language}\n{cap(node.source.strip(), limit)}\n```\n"


# ---- what is asked


def _request(task: Task) -> str:
    if task.edge is Edge.REPAIR and task.failed is not None:
        return _repair(task.failed)
    if task.parent is None:
        failed = sum(1 for n in task.nodes if n.edge is Edge.DRAFT and n.evaluation and not n.evaluation.verdict.right)
        right = any(n.evaluation and n.evaluation.verdict.right for n in task.nodes)
        if failed >= PLAIN_AFTER and not right:
            return ("# Task\nEarlier drafts failed. Write the simplest kernel that is certainly right: plain loops, "
                    "no tricks, every index derived from the header's shapes and strides.\n")  # fmt: skip
        return ("# Task\nWrite a first kernel for this target. Take an approach that differs in mechanism from those "
                "named above, if any are.\n")  # fmt: skip
    if task.edge is Edge.MERGE:
        return ("# Task\nWrite one kernel that combines what makes these two fast: the better one's structure, with "
                "what the other one does better. If they exclude each other, say so in `hypothesis` and take what you "
                "expect to be faster.\n")  # fmt: skip
    if task.edge is Edge.REWRITE:
        families = sorted({first_words(n.family, 6) for n in task.nodes if n.family})[:8]
        named = f", none of these: {'; '.join(families)}" if families else ""
        return (f"# Task\nSmall changes lead no further here. Write the kernel anew by an approach of another kind"
                f"{named}. Keep only what the history above shows to matter, and name the new approach in "
                "`family`.\n")  # fmt: skip
    here = _places(task)
    tried = tuple(n.family for n in task.nodes if n.parent in here and n.family)
    strategy = strategies.choose(task.target.bound, task.device.language, task.seed, tried)
    if strategy is None:
        return ("# Task\nMake this kernel faster by the change that you expect to matter most. Change one thing in "
                "mechanism, and keep what works.\n")  # fmt: skip
    return (f"# Task\nMake this kernel faster by this move: {strategy.name}. {strategy.text} If it cannot apply here, "
            f"take the next best one and say so. Keep what works. Reply with `family: {strategy.name}` if you "
            "followed it.\n")  # fmt: skip


def _repair(failed: Node) -> str:
    evaluation = failed.evaluation
    assert evaluation is not None, "a repair mends a kernel that was judged"
    what = {
        Verdict.COMPILE_ERROR: "It does not compile",
        Verdict.REFUSED: "It breaks the contract",
        Verdict.REJECTED: "It was rejected",
        Verdict.CRASHED: "It crashed",
        Verdict.TIMED_OUT: "It did not end in time",
    }.get(evaluation.verdict, "It failed")
    return (f"# Task\n{what}. Find the cause and reply with the whole corrected source. Keep the approach; change "
            f"only what is wrong.\n```text\n{cap(errors(failed), CAP_ERRORS)}\n```\n")  # fmt: skip


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
        shown = f"line {number}: {cap(lines[number - 1].strip(), 160)}\n    " if 0 < number <= len(lines) else ""
        found.append(f"{shown}error{cap(text, 240)}")
        if len(found) == MAX_ERRORS:
            break
    reason = cap(" ".join(evaluation.reason.split()), 400)
    if not found and evaluation.log.strip():
        # no compiler error: the judge's pattern of wrong values, a signal, the sandbox's words
        found = [cap(evaluation.log.strip(), 700)]
    return "\n".join([reason, *found] if reason else found)
