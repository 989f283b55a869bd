"""Records to columns and back; what reader and writer must agree on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from forge_tui.core import secrets
from forge_tui.core.profiles import Hotspot
from forge_tui.core.records import Confirmation, DeployDecision, Deployment, Evaluation, LlmCall, Node, Record

T = TypeVar("T")

HOTSPOT = (
    "id", "parent", "name", "kind", "path", "calls", "total_ms", "self_ms", "share", "headroom_ms", "target_id",
    "reason", "floor_ms", "bound", "host_ms", "launches", "signature", "kernels",
)  # fmt: skip
NODE = (
    "id", "target_id", "parent", "edge", "proposer", "source", "language", "idea", "family", "tunables", "key",
    "cost_usd", "repairs",
)  # fmt: skip
EVALUATION = (
    "verdict", "reason", "compile_s", "verify_s", "timing_s", "time_us", "baseline_us", "speedup", "speedup_low",
    "speedup_high", "max_abs_error", "error_vs_eager", "sha256", "log", "resources",
    "timings",
)  # fmt: skip
CONFIRMATION = ("verdict", "reason", "speedup", "unsanitised", "record")
LLM_CALL = (
    "model", "prompt", "reply", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "priced",
    "latency_s", "error", "state", "attempt", "reserved_usd", "exact", "cache_write_tokens", "reasoning_tokens",
    "price", "seed", "finish",
)  # fmt: skip


class LedgerEntry(Record, frozen=True, kw_only=True):
    """One call and what it was for."""

    id: int
    target_id: str
    edge: str
    node_id: int | None
    """The node that came of it; None where the reply held no kernel."""
    at: float
    """Unix seconds."""
    call: LlmCall


def dump(value: Any) -> str:
    """JSON in Python's dialect, which keeps the infinities that scalars and graph constants may hold."""
    return clean(json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":")))


def load(text: str, kind: type[T]) -> T:
    """A record from what `dump` wrote."""
    return msgspec.convert(json.loads(text), kind)


def clean(text: str) -> str:
    """The text without the values of keys, and without lone surrogates.

    Those come from undecodable bytes of logs, and SQLite cannot hold them.
    """
    text = secrets.without_values(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def number(value: float | None) -> float | None:
    """NaN is no number in SQL: it is kept as NULL, read back as None."""
    return None if value is None or math.isnan(value) else float(value)


def hotspot_row(hotspot: Hotspot) -> list[Any]:
    """Values of the columns `HOTSPOT`."""
    return [dump(hotspot.kernels) if name == "kernels" else _plain(getattr(hotspot, name)) for name in HOTSPOT]


def node_row(node: Node) -> list[Any]:
    """Values of the columns `NODE`."""
    return [dump(node.tunables) if name == "tunables" else _plain(getattr(node, name)) for name in NODE]


def evaluation_row(evaluation: Evaluation) -> list[Any]:
    """Values of the columns `EVALUATION`; samples have a table of their own."""
    low, high = evaluation.speedup_ci or (None, None)
    if number(low) is None or number(high) is None:
        low = high = None
    special = {"speedup_low": low, "speedup_high": high, "resources": dump(evaluation.resources)}
    special["timings"] = "" if evaluation.timings is None else dump(evaluation.timings)
    return [special[name] if name in special else _plain(getattr(evaluation, name)) for name in EVALUATION]


def llm_row(call: LlmCall) -> list[Any]:
    """Values of the columns `LLM_CALL`."""
    return [_plain(getattr(call, name)) for name in LLM_CALL]


def to_hotspot(row: Sequence[Any], columns: Sequence[str] = HOTSPOT) -> Hotspot:
    """A hotspot from the columns `HOTSPOT`, or from those of them that an older layout has."""
    fields = dict(zip(columns, row, strict=True))
    if "kernels" in fields:
        fields["kernels"] = json.loads(fields["kernels"])
    return msgspec.convert(fields, Hotspot)


def to_node(row: Sequence[Any], evaluation: Evaluation | None) -> Node:
    """A node from the columns `NODE`."""
    fields = dict(zip(NODE, row, strict=True))
    fields["tunables"] = json.loads(fields["tunables"])
    node = msgspec.convert(fields, Node)
    return node if evaluation is None else msgspec.structs.replace(node, evaluation=evaluation)


def confirmation_row(confirmation: Confirmation) -> list[Any]:
    """Values of the columns `CONFIRMATION`."""
    own = [_plain(getattr(confirmation, name)) for name in CONFIRMATION[:-1]]
    return [*own, dump(confirmation)]


def standing(evaluation: Evaluation, confirmation: Confirmation) -> Evaluation:
    """An evaluation with what the final confirmation made of it: one that failed takes its verdict and numbers."""
    if confirmation.passed:
        return msgspec.structs.replace(evaluation, confirmation=confirmation)
    found = confirmation
    return msgspec.structs.replace(
        evaluation, confirmation=found, verdict=found.verdict, reason=f"In the final confirmation: {found.reason}",
        log=found.log or evaluation.log, time_us=found.time_us, baseline_us=found.baseline_us, speedup=found.speedup,
        speedup_ci=found.speedup_ci,
    )  # fmt: skip


def to_evaluation(
    row: Sequence[Any], samples: Sequence[tuple[float, float]] = (), confirmation: str | None = None
) -> Evaluation | None:
    """An evaluation from the columns `EVALUATION`; None where the outer join found none.

    `confirmation` is the record of the node's final confirmation.
    """
    fields = dict(zip(EVALUATION, row, strict=True))
    if fields["verdict"] is None:
        return None
    low, high = fields.pop("speedup_low"), fields.pop("speedup_high")
    fields["speedup_ci"] = None if low is None else (low, high)
    fields["resources"] = json.loads(fields["resources"])
    fields["samples"] = [tuple(pair) for pair in samples]
    fields["timings"] = json.loads(fields["timings"]) if fields["timings"] else None
    found = msgspec.convert(fields, Evaluation)
    return found if confirmation is None else standing(found, load(confirmation, Confirmation))


def to_llm_call(row: Sequence[Any], columns: Sequence[str] = LLM_CALL) -> LlmCall:
    """A call from the columns `LLM_CALL`, or from those of them that an older layout has."""
    fields = dict(zip(columns, row, strict=True))
    for name in ("priced", "exact"):
        if name in fields:
            fields[name] = bool(fields[name])
    return msgspec.convert(fields, LlmCall)


def decision_row(decision: DeployDecision) -> list[Any]:
    """target_id, node_id, deployed, why_not, record."""
    return [decision.target_id, decision.node_id, int(decision.deployed), clean(decision.why_not), dump(decision)]


def to_deployment(record: str, decisions: Sequence[str]) -> Deployment:
    """A deployment from its record and those of its decisions."""
    fields = json.loads(record)
    fields["decisions"] = [json.loads(decision) for decision in decisions]
    return msgspec.convert(fields, Deployment)


def _plain(value: Any) -> Any:
    """A value that SQLite takes as it is."""
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, bool):
        return int(value)
    return number(value) if isinstance(value, float) else value
