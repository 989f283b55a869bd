"""Names of sessions: the model's, and a running number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from forge_tui.core.records import ModelSpec

#: the name is part of the control socket's path, which must be short
_LONGEST = 40


def stem(model: ModelSpec) -> str:
    """A model's short name in letters that every shell and filesystem takes: `tiny-llm`."""
    example = model.text.removeprefix("example:")
    name = example if example != model.text else _file_name(model)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_LONGEST].strip("-._") or "model"


def _file_name(model: ModelSpec) -> str:
    path = Path(model.path)
    if model.hf is None or path.name != "config.json":
        return path.stem
    if "snapshots" in path.parts:  # the hub's cache: the folder is named by a hash
        return "-".join(model.text.partition("@")[0].split("/")[1:])
    return path.parent.name


def next_session_id(model: ModelSpec, taken: Sequence[str]) -> str:
    """`stem-N`, N one above the highest that is taken."""
    name = stem(model)
    pattern = re.compile(re.escape(name) + r"-(\d{1,9})")
    numbers = [int(found[1]) for found in map(pattern.fullmatch, taken) if found]
    return f"{name}-{max(numbers, default=0) + 1}"
