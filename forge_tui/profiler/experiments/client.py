"""What is measured beside a profile, from the engine's side: baselines and what-ifs, in workers. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Baseline, Mode, Profile, TargetBaselines, WhatIf
from forge_tui.core.records import ModelSpec, Target
from forge_tui.profiler.experiments.names import EAGER, best, model_ways, one_by_one, row_name, target_ways
from forge_tui.profiler.experiments.rows import Progress, RowFailed, Rows, quiet

#: targets measured in one worker before it is replaced: what they compile stays in its memory
_TARGETS_A_WORKER = 4


async def baselines(
    spec: ModelSpec, profile: Profile, workspace: Workspace, *, device_name: str, threads: int = 0, seed: int = 0,
    log: Path, target_ids: Sequence[str] = (), max_targets: int = 8, allow_tf32: bool = False,
    timeout_s: float = 3600.0, row_timeout_s: float = 600.0, budget_s: float = 6.0, on_progress: Progress = quiet,
) -> Profile:  # fmt: skip
    """The profile with the baselines of the whole model and of some targets (by id, else those of most headroom).

    What fails, does not end, or gives other results than eager is a row with its reason. Compiling and capturing ways
    run in a process of their own each. `on_progress` gets one line for each row.

    Raises:
        ModelError: the model cannot be loaded, or its forward raises.
        UsageError: an id is no target of the profile.
        EnvironmentFault: the device is not there, or the model's worker died while it was loaded.
    """
    chosen = pick(profile, target_ids, max_targets)
    kind = "cuda" if device_name.startswith("cuda") else "cpu"
    async with Rows(spec, device_name=device_name, threads=threads, seed=seed, log=log, timeout_s=timeout_s,
                    row_timeout_s=row_timeout_s, allow_tf32=allow_tf32) as rows:  # fmt: skip
        await rows.open()
        whole = await _model(rows, kind, budget_s, on_progress)
        found = {item.target_id: item for item in profile.target_baselines}
        for number, target in enumerate(chosen):
            if number % _TARGETS_A_WORKER == 0:
                await rows.close()
            found[target.id] = await _target(rows, target, workspace, kind, budget_s / 3, on_progress)
    ordered = tuple(found[t.id] for t in profile.targets if t.id in found)
    return msgspec.structs.replace(profile, baselines=tuple(whole), target_baselines=ordered)


async def _model(rows: Rows, kind: str, budget_s: float, on_progress: Progress) -> list[Baseline]:
    sets = one_by_one(rows.settings)
    plan: list[tuple[str, tuple[str, ...]]] = [(way, ()) for way in model_ways(kind)]
    plan[1:1] = [(EAGER, settings) for settings in sets]
    plan += [("compile", settings) for settings in sets]
    found: list[Baseline] = []
    for way, settings in plan:
        alone = way != EAGER
        if alone:
            await rows.close()
        row = await _row(rows, "baseline", way, {"settings": settings, "budget_s": budget_s}, settings)
        found.append(row)
        on_progress(_said("model", row))
        if alone:
            await rows.close()
    fastest = best(found)
    on_progress(f"model: the fastest right way is {fastest.name}" if fastest else "model: nothing could be measured")
    return found


async def _target(
    rows: Rows, target: Target, workspace: Workspace, kind: str, budget_s: float, on_progress: Progress
) -> TargetBaselines:
    fields = {"target": msgspec.to_builtins(target), "artifacts": str(workspace.artifacts), "budget_s": budget_s}
    found: list[Baseline] = []
    for way in target_ways(kind):
        row = await _row(rows, "target_baseline", way, fields)
        found.append(row)
        on_progress(_said(target.name, row))
    return TargetBaselines(target_id=target.id, baselines=tuple(found))


async def _row(
    rows: Rows, op: str, way: str, fields: dict[str, Any], settings: Sequence[str] = ()
) -> Baseline:
    try:
        answer = await rows.ask(op, way=way, **fields)
    except RowFailed as error:
        return Baseline(name=row_name(way, settings), ms=None, failure=f"{error}")
    return msgspec.convert(answer["baseline"], Baseline)


def _said(of: str, row: Baseline) -> str:
    return f"{of}, {row.name}: {row.failure}" if row.ms is None else f"{of}, {row.name}: {row.ms:.4g} ms"


async def what_if(
    spec: ModelSpec, profile: Profile, workspace: Workspace, *, device_name: str, threads: int = 0, seed: int = 0,
    log: Path, target_ids: Sequence[str] = (), max_targets: int = 5, modes: Sequence[Mode] = (),
    timeout_s: float = 3600.0, row_timeout_s: float = 600.0, budget_s: float = 4.0, on_progress: Progress = quiet,
) -> Profile:  # fmt: skip
    """The profile with what the model would gain if targets cost their floor: one by one, and all together.

    Targets are given by id, else those of most headroom are taken. Modes are all that the device knows, unless named;
    each has a worker of its own. The first row of a mode is the model as it is; where that fails, the mode has no
    other rows. Rows of other targets and modes that the profile has are kept. `on_progress` gets one line a row.

    Raises:
        ModelError: the model cannot be loaded, or its forward raises.
        UsageError: an id is no target of the profile, or the device has no such mode.
        EnvironmentFault: the device is not there, or the model's worker died while it was loaded.
    """
    del workspace  # nothing is read from it: stand-ins need forms, not values
    chosen = pick(profile, target_ids, max_targets)
    on_cuda = device_name.startswith("cuda")
    if "graph" in modes and not on_cuda:
        raise UsageError("CUDA graphs need a CUDA device.", "Ask for eager or compile.")
    every: tuple[Mode, ...] = ("eager", "compile", "graph") if on_cuda else ("eager", "compile")
    found: list[WhatIf] = []
    async with Rows(spec, device_name=device_name, threads=threads, seed=seed, log=log, timeout_s=timeout_s,
                    row_timeout_s=row_timeout_s) as rows:  # fmt: skip
        for mode in dict.fromkeys(modes or every):
            await rows.close()
            found += await _mode(rows, mode, chosen, profile, budget_s, on_progress)
    new = {(row.mode, row.target_ids) for row in found}
    kept = [row for row in profile.what_ifs if (row.mode, row.target_ids) not in new]
    return msgspec.structs.replace(profile, what_ifs=(*kept, *found))


async def _mode(
    rows: Rows, mode: Mode, targets: Sequence[Target], profile: Profile, budget_s: float, on_progress: Progress
) -> list[WhatIf]:
    ceilings = profile.device.ceilings
    names = {t.id: t.name for t in targets}
    found: list[WhatIf] = []
    for chosen in [(), *one_by_one(targets)]:
        ids = tuple(t.id for t in chosen)
        # neither source nor graph is looked at
        slim = [msgspec.to_builtins(msgspec.structs.replace(t, source="", graph=None)) for t in chosen]
        try:
            answer = await rows.ask("what_if", mode=mode, targets=slim, budget_s=budget_s,
                                    launch_us=ceilings.launch_us if ceilings else 0.0)  # fmt: skip
            row = msgspec.convert(answer["what_if"], WhatIf)
        except RowFailed as error:
            row = WhatIf(mode=mode, target_ids=ids, ms=None, base_ms=None, failure=f"{error}")
        found.append(row)
        of = " + ".join(names[i] for i in ids) or "the model as it is"
        on_progress(f"{mode}, {of}: {_outcome(row)}")
        if not ids and row.failure:
            break
    return found


def _outcome(row: WhatIf) -> str:
    if row.ms is None or row.base_ms is None:
        return row.failure
    return f"{row.ms:.4g} ms instead of {row.base_ms:.4g}" if row.target_ids else f"{row.ms:.4g} ms"


def pick(profile: Profile, target_ids: Sequence[str], most: int) -> list[Target]:
    """The targets of these ids, in this order, else at most so many by headroom.

    Raises:
        UsageError: an id is no target of the profile.
    """
    by_id = {t.id: t for t in profile.targets}
    for wanted in target_ids:
        if wanted not in by_id:
            raise UsageError(f"The profile has no target {wanted}.", "Profile the model again.")
    if target_ids:
        return [by_id[i] for i in dict.fromkeys(target_ids)]
    return sorted(profile.targets, key=lambda t: -t.headroom_ms)[: max(0, most)]
