"""Names of baselines, for those who measure them and those who ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from forge_tui.core.profiles import Baseline

T = TypeVar("T")

EAGER = "eager"
GRAPH = "graph"
#: what `torch.compile` takes as its mode, by name of the baseline
COMPILE_MODES: dict[str, str | None] = {
    "compile": None,
    "compile max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs",
    "compile reduce-overhead": "reduce-overhead",
}
#: standard settings of a model, in the order in which they are named
LABELS = {"channels-last": "channels-last", "sdpa": "SDPA attention", "tf32": "TF32"}


def model_ways(kind: str) -> list[str]:
    """The ways to run a whole model on `cpu` or `cuda`, but for the standard settings."""
    compiled = [name for name in COMPILE_MODES if kind == "cuda" or name != "compile reduce-overhead"]
    return [EAGER, *([GRAPH] if kind == "cuda" else []), *compiled]


def target_ways(kind: str) -> list[str]:
    """The ways to run one target's call on `cpu` or `cuda`."""
    compiled = [name for name in COMPILE_MODES if name != "compile reduce-overhead"]
    return [EAGER, *compiled, *([GRAPH] if kind == "cuda" else [])]


def label(settings: Sequence[str]) -> str:
    """`channels-last + SDPA attention`."""
    return " + ".join(text for name, text in LABELS.items() if name in settings)


def row_name(way: str, settings: Sequence[str] = ()) -> str:
    """`eager, channels-last + SDPA attention`; without settings the way alone."""
    return f"{way}, {label(settings)}" if settings else way


def best(baselines: Sequence[Baseline]) -> Baseline | None:
    """The fastest one that ran and gave right outputs."""
    right = [row for row in baselines if row.ms is not None and not row.failure]
    return min(right, key=lambda row: row.ms or 0.0, default=None)


def one_by_one(items: Sequence[T]) -> list[tuple[T, ...]]:
    """Each one alone, and all of them together."""
    alone: list[tuple[T, ...]] = [(item,) for item in items]
    return [*alone, tuple(items)] if len(items) > 1 else alone
