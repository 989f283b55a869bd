"""What a session's model calls came to: by model, by target, by what they were for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from forge_tui.core.records import Deployment, Node, Record
from forge_tui.core.words import count
from forge_tui.report.format import money
from forge_tui.report.table import Column, render
from forge_tui.store.codec import LedgerEntry
from forge_tui.store.reader import Reader

#: calls that may have been charged for and brought nothing
_BROKEN = ("broken", "cancelled", "lost")


class CostLine(Record, frozen=True, kw_only=True):
    """Sums over some calls. Dollars are at least what is said where `unpriced` is not 0."""

    name: str
    calls: int
    """Requests, each try by itself."""
    done: int
    """That answered."""
    refused: int
    """That the provider turned away, which costs nothing."""
    broken: int
    """That may have been charged and did not answer: broken, cancelled, lost."""
    on_their_way: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompts, read from the provider's cache."""
    cache_write_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    """Of the replies, hidden reasoning."""
    cache_hit_rate: float | None
    """Cached over prompt tokens, 0 to 1."""
    cost_usd: float
    booked_usd: float
    """Of the cost, what no provider counted: booked at the most it can be."""
    unpriced: int
    """Calls whose price is not known."""
    verified: int
    """Right kernels that came of the calls."""
    usd_per_verified: float | None
    gained_percent: float | None
    """Of the model's time, by what was deployed; each kernel alone, in the last line all together."""
    usd_per_percent: float | None


class CostReport(Record, frozen=True, kw_only=True):
    """What `cost --json` prints."""

    session: str
    model: str
    max_usd: float | None
    rent_usd: float
    prices: tuple[str, ...]
    """Every price that was used, as `MODEL: ...`."""
    models: tuple[CostLine, ...]
    targets: tuple[CostLine, ...]
    purposes: tuple[CostLine, ...]
    total: CostLine


def cost_report(reader: Reader, session_id: str) -> CostReport:
    """The ledger summed up.

    Raises:
        UsageError: there is no such session.
    """
    session = reader.session(session_id)
    entries = reader.llm_calls(session.id)
    nodes = {node.id: node for node in reader.nodes(session.id, sources=False)}
    names = {target.id: target.name for target in reader.targets(session.id)}
    deployment = reader.deployment(session.id)
    gains = _gains(deployment, nodes, {entry.call.model for entry in entries})

    def by(key: Callable[[LedgerEntry], str], gained: Callable[[str], float | None]) -> tuple[CostLine, ...]:
        groups: dict[str, list[LedgerEntry]] = {}
        for entry in entries:
            groups.setdefault(key(entry), []).append(entry)
        return tuple(_line(names.get(name, name), made, nodes, gained(name)) for name, made in groups.items())

    whole = None
    if deployment is not None and deployment.baseline_ms > 0:
        whole = _percent(deployment.baseline_ms / deployment.deployed_ms if deployment.deployed_ms > 0 else None)
    prices = dict.fromkeys(f"{e.call.model}: {e.call.price}" for e in entries if e.call.price)
    return CostReport(
        session=session.id, model=session.options.model.text, max_usd=session.options.max_usd,
        rent_usd=session.options.gpu_usd_per_hour * session.elapsed_s / 3600, prices=tuple(prices),
        models=by(lambda e: e.call.model, lambda name: gains.get(("model", name))),
        targets=by(lambda e: e.target_id, lambda name: gains.get(("target", name))),
        purposes=by(lambda e: e.edge, lambda _: None), total=_line("total", entries, nodes, whole),
    )  # fmt: skip


def _gains(
    deployment: Deployment | None, nodes: dict[int, Node], models: set[str]
) -> dict[tuple[str, str], float]:
    """Percent of the model's time that deployed kernels give, each alone, by who wrote them and by target."""
    found: dict[tuple[str, str], float] = {}
    for decision in deployment.decisions if deployment is not None else ():
        percent = _percent(decision.alone_speedup)
        writer = _writer(nodes, decision.node_id, models)
        if not decision.deployed or percent is None or not writer:
            continue
        for key in (("model", writer), ("target", decision.target_id)):
            found[key] = found.get(key, 0.0) + percent
    return found


def _writer(nodes: dict[int, Node], node_id: int | None, models: set[str]) -> str:
    """The model that wrote a kernel; one whose settings were tried later is still its."""
    while node_id is not None and node_id in nodes:
        node = nodes[node_id]
        if node.proposer in models:
            return node.proposer
        if node.edge != "tune":
            return ""
        node_id = node.parent
    return ""


def _percent(speedup: float | None) -> float | None:
    return None if speedup is None or speedup <= 0 else 100.0 * (1.0 - 1.0 / speedup)


def _line(name: str, entries: Sequence[LedgerEntry], nodes: dict[int, Node], gained: float | None) -> CostLine:
    calls = [entry.call for entry in entries]
    usd = math.fsum(call.cost_usd or 0.0 for call in calls)
    prompt = sum(call.prompt_tokens for call in calls)
    cached = sum(call.cached_tokens for call in calls)
    verified = sum(_right(nodes.get(entry.node_id)) for entry in entries if entry.node_id is not None)
    return CostLine(
        name=name, calls=len(calls), done=sum(call.state == "done" for call in calls),
        refused=sum(call.state == "failed" for call in calls), broken=sum(call.state in _BROKEN for call in calls),
        on_their_way=sum(call.state == "open" for call in calls), prompt_tokens=prompt, cached_tokens=cached,
        cache_write_tokens=sum(call.cache_write_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        reasoning_tokens=sum(call.reasoning_tokens for call in calls),
        cache_hit_rate=cached / prompt if prompt else None, cost_usd=usd,
        booked_usd=math.fsum(call.cost_usd or 0.0 for call in calls if not call.exact),
        unpriced=sum(not call.priced for call in calls), verified=verified,
        usd_per_verified=usd / verified if verified and usd else None, gained_percent=gained,
        usd_per_percent=usd / gained if gained is not None and gained > 0 and usd else None,
    )  # fmt: skip


def _right(node: Node | None) -> bool:
    return node is not None and node.evaluation is not None and node.evaluation.verdict.right


def as_text(report: CostReport, width: int) -> str:
    """Three tables and what does not fit into them, for people."""
    total = report.total
    if not total.calls:
        return f"Session {report.session} made no model calls."
    parts = []
    for head, lines in (("model", report.models), ("target", report.targets), ("purpose", report.purposes)):
        rows = [_cells(line) for line in lines]
        rows += [_cells(total)] if head == "model" and len(lines) > 1 else []
        parts.append(render(_columns(head), rows, width))
    parts.append("\n".join(_notes(report)))
    return "\n\n".join(parts)


def _columns(head: str) -> list[Column]:
    numbers = (("calls", 0), ("failed", 0), ("in", 3), ("cached", 2), ("written", 6), ("out", 3), ("reasoning", 7),
               ("right", 1), ("cost", 0), ("per right", 4), ("per 1%", 5))  # fmt: skip
    return [Column(head, 40, least=10), *(Column(name, right=True, drop=drop) for name, drop in numbers)]


def _cells(line: CostLine) -> list[str]:
    hits = "-" if line.cache_hit_rate is None else f"{line.cache_hit_rate:.0%}"
    return [
        line.name, str(line.calls), str(line.refused + line.broken), _tokens(line.prompt_tokens), hits,
        _tokens(line.cache_write_tokens), _tokens(line.completion_tokens), _tokens(line.reasoning_tokens),
        str(line.verified), "unknown" if line.unpriced and not line.cost_usd else money(line.cost_usd),
        _dollars(line.usd_per_verified), _dollars(line.usd_per_percent),
    ]  # fmt: skip


def _tokens(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1e3:.1f}k" if count < 1_000_000 else f"{count / 1e6:.2f}M"


def _dollars(usd: float | None) -> str:
    return "-" if usd is None else money(usd)


def _notes(report: CostReport) -> Iterable[str]:
    total = report.total
    limit = f" of {money(report.max_usd)}" if report.max_usd is not None else ""
    rent = f", and {money(report.rent_usd)} for the machine" if report.rent_usd else ""
    yield f"Model calls cost {money(total.cost_usd, lower_bound=total.unpriced > 0)}{limit}{rent}."
    if total.booked_usd:
        yield (f"{money(total.booked_usd)} of it is not the provider's count: calls that broke, were cancelled, or "
               "were not counted stand at the most that they can cost.")  # fmt: skip
    if total.unpriced:
        yield f"{count(total.unpriced, 'call has', 'calls have')} no known price; --price MODEL=IN,OUT gives one."
    if total.on_their_way:
        yield f"{count(total.on_their_way, 'call is on its', 'calls are on their')} way."
    if total.gained_percent is not None and total.gained_percent > 0:
        yield f"The deployed model takes {total.gained_percent:.1f}% less time."
    yield from report.prices
