"""One kernel on one target, evaluated as the search would, without a session."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import Compiler
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Built, Device, Edge, Evaluation, Node, Record, RunOptions, Target, Verdict
from forge_tui.engine import confirming
from forge_tui.engine.pipeline import Pipeline
from forge_tui.engine.profiles import profile_cached
from forge_tui.engine.rooms import Rooms
from forge_tui.processes.quiet import Quiet
from forge_tui.store.codec import standing


def pick_target(profile: Profile, name: str | None) -> Target:
    """The target of that name or id; without a name the one with the most headroom.

    Raises:
        UsageError: there is none of that name, or none at all.
    """
    ranked = sorted(profile.targets, key=lambda t: t.headroom_ms, reverse=True)
    if not ranked:
        raise UsageError("This model has no target that a kernel could replace.",
                         "What its forward does itself is none: move it to a module or a function that it calls. "
                         "forge-tui profile says more.")  # fmt: skip
    if name is None:
        return ranked[0]
    # the one that serves several sizes first
    for target in sorted(ranked, key=lambda t: not t.siblings):
        if target.called(name):
            return target
    raise UsageError(f"There is no target {name!r}.", f"Targets are {', '.join(t.name for t in ranked)}.")


class Checked(Record, frozen=True, kw_only=True):
    """What a check found."""

    target: Target
    evaluation: Evaluation
    counters: str = ""
    """Hardware counters in at most 15 lines, where they were asked for."""
    no_counters: str = ""
    """Why there are none, where they were asked for."""


async def check_kernel(
    rooms: Rooms, options: RunOptions, workspace: Workspace, source: str, target_name: str | None,
    tunables: dict[str, int], *, confirm: bool = True, ncu: bool = False,
) -> Checked:  # fmt: skip
    """Evaluate one source; the verdict is what the search would have given.

    A kernel that is faster is confirmed as a winner would be, unless `confirm` says not. With `ncu` a right one's
    hardware counters are read.
    """
    rooms.check_tools()
    profile = await profile_cached(rooms, options, workspace)
    target = pick_target(profile, target_name)
    compiler = rooms.compiler(profile.device)
    quiet = Quiet(exclusive=profile.device.kind == "cpu")
    evaluator = rooms.evaluator(profile.device, quiet)
    try:
        usable = await evaluator.open(target)
        if not usable.usable:
            reason = f"{target.name} cannot be verified: {usable.reason}"
            return Checked(target=target, evaluation=Evaluation(verdict=Verdict.INFRA, reason=reason))
        pipeline = Pipeline(compiler, evaluator, quiet, profile.device)
        evaluation = await pipeline.run(target, 1, source, tunables, options.seed)
    finally:
        await evaluator.close()
    wanted = confirm and evaluation.verdict is Verdict.FASTER
    if not (wanted or (ncu and evaluation.verdict.right)):
        return Checked(target=target, evaluation=evaluation)
    return await _once_more(rooms, compiler, profile.device, target, evaluation, source, tunables, options.seed,
                            confirm=wanted, ncu=ncu)  # fmt: skip


async def _once_more(
    rooms: Rooms, compiler: Compiler, device: Device, target: Target, evaluation: Evaluation, source: str,
    tunables: dict[str, int], seed: int, *, confirm: bool, ncu: bool,
) -> Checked:  # fmt: skip
    """The final confirmation and the counters, in processes of their own."""
    node = Node(id=1, target_id=target.id, parent=None, edge=Edge.START, proposer="person", source=source,
                language=device.language, tunables=tunables)  # fmt: skip
    counters = no_counters = ""
    confirmer = rooms.confirmer(device)
    try:
        built = await compiler.build(target, source, tunables)
        if not isinstance(built, Built) or built.sha256 != evaluation.sha256:
            raise EnvironmentFault("The kernel's file was built anew and differs.", "Try again.")
        if confirm:
            found = await confirming.confirm(confirmer, target, built, node, seed)
            if found.verdict is Verdict.INFRA:
                found = msgspec.structs.replace(found, reason=f"It could not be made: {found.reason}")
            evaluation = standing(evaluation, found)
        if ncu and evaluation.verdict.right:
            try:
                counters = await confirmer.counters(target, built)
            except EnvironmentFault as error:
                no_counters = error.what
    finally:
        await confirmer.close()
    return Checked(target=target, evaluation=evaluation, counters=counters, no_counters=no_counters)


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
