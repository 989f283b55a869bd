"""One kernel on one target, evaluated as the search would, without a session."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Evaluation, RunOptions, Target, Verdict
from forge_tui.engine.pipeline import Pipeline
from forge_tui.engine.profiles import profile_cached
from forge_tui.engine.rooms import Rooms
from forge_tui.processes.quiet import Quiet


def pick_target(profile: Profile, name: str | None) -> Target:
    """The target of that name or id; without a name the one with the most headroom.

    Raises:
        UsageError: there is none of that name, or none at all.
    """
    ranked = sorted(profile.targets, key=lambda t: t.headroom_ms, reverse=True)
    if not ranked:
        raise UsageError("This model has no target that a kernel could replace.", "forge-tui profile says why.")
    if name is None:
        return ranked[0]
    for target in ranked:
        if name in (target.name, target.id):
            return target
    raise UsageError(f"There is no target {name!r}.", f"Targets are {', '.join(t.name for t in ranked)}.")


async def check_kernel(
    rooms: Rooms, options: RunOptions, workspace: Workspace, source: str, target_name: str | None,
    tunables: dict[str, int],
) -> tuple[Target, Evaluation]:  # fmt: skip
    """Evaluate one source; the verdict is what the search would have given."""
    rooms.check_tools()
    profile = await profile_cached(rooms, options, workspace)
    target = pick_target(profile, target_name)
    quiet = Quiet(exclusive=profile.device.kind == "cpu")
    evaluator = rooms.evaluator(profile.device, quiet)
    try:
        usable = await evaluator.open(target)
        if not usable.usable:
            reason = f"{target.name} cannot be verified: {usable.reason}"
            return target, Evaluation(verdict=Verdict.INFRA, reason=reason)
        pipeline = Pipeline(rooms.compiler(profile.device), evaluator, quiet, profile.device)
        return target, await pipeline.run(target, 1, source, tunables, options.seed)
    finally:
        await evaluator.close()


def parse_tunables(texts: list[str]) -> dict[str, int]:
    """`NAME=VALUE` pairs of the command line.

    Raises:
        UsageError: one is not of that form.
    """

    def pairs() -> Iterator[tuple[str, int]]:
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not value.lstrip("-").isdecimal():
                raise UsageError(f"--tune {text!r} is not of the form NAME=INTEGER.")
            yield name, int(value)

    return dict(pairs())
