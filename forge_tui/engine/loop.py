"""A session from start to end: profile, open targets, search, deploy; every step in the store as it happens."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from forge_tui.core import secrets
from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError
from forge_tui.core.events import Kind
from forge_tui.core.landscapes import PREFIX
from forge_tui.core.ports import Booked, Compiler, Equipped, Evaluator, Isolated, Keyed, Proposer, Task
from forge_tui.core.profiles import Profile
from forge_tui.core.records import (
    DeployDecision,
    Device,
    Edge,
    SessionInfo,
    SessionState,
    Target,
    Verdict,
)
from forge_tui.engine import confirming, estimate, profiles, restoring
from forge_tui.engine.clock import Clock
from forge_tui.engine.pipeline import Pipeline
from forge_tui.engine.rooms import Rooms
from forge_tui.engine.roster import Roster
from forge_tui.engine.searching import SearchPhase
from forge_tui.engine.workbench import EngineWorkbench
from forge_tui.processes.quiet import Quiet
from forge_tui.search.driver import Search, SearchConfig
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store
from forge_tui.targets.select import choose, measured_gains

HEARTBEAT_S = 2.0


#: share of the time in which the device waits for launches, from which headroom says little of what a model gains
_WAITING = 0.1


def _waits(profile: Profile) -> bool:
    return profile.device.kind == "cuda" and profile.idle_share > _WAITING


class Engine:
    """Runs one session. `run` returns when it is done, interrupted or failed; the store says which."""

    def __init__(self, store: Store, reader: Reader, session: SessionInfo, rooms: Rooms) -> None:
        self._store = store
        self._reader = reader
        self._session = session
        self._id = session.id
        self._options = session.options
        self._rooms = rooms
        self._search_phase: SearchPhase | None = None
        self._stop_asked = False
        self._main: asyncio.Task[None] | None = None
        self._clock = Clock(session.elapsed_s, session.search_s)
        self._state: SessionState = session.state

    # ---- commands, called from the control socket and from signal handlers

    def ask_stop(self) -> None:
        """End soon and resumable. The second call, or one outside the search, ends at once."""
        again, self._stop_asked = self._stop_asked, True
        if self._search_phase is not None and not again:
            self._search_phase.ask_stop()
        elif self._main is not None:
            self._main.cancel()

    def pause(self, paused: bool) -> None:
        """Hold the search, or let it go on."""
        if self._search_phase is not None:
            self._search_phase.pause(paused)
            self._log("info", "Paused." if paused else "Going on.")

    def note(self, text: str) -> None:
        """Something that a person may want to know: into the log."""
        self._log("info", text)

    def status(self) -> dict[str, Any]:
        """State for `status` commands."""
        return {"session": self._id, "state": self._state, "elapsed_s": self._clock.elapsed_s,
                "search_s": self._clock.search_s}

    # ---- the road

    async def run(self) -> None:
        """Go the whole road; a stop ends it in the state `interrupted`.

        Raises:
            ForgeError: what ended the session, which is in the state `failed`.
            Exception: the same of a bug.
        """
        self._main = asyncio.current_task()
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            await self._road()
        except asyncio.CancelledError:
            self._set_state("interrupted", stop_reason="Stopped by request.")
        except ForgeError as error:
            self._fail(error)
            raise
        except Exception as error:
            what = secrets.masked(f"{type(error).__name__}: {error}")
            bug = ForgeError(what, "This is a bug; the engine's log has the details.", exit_code=ExitCode.BUG)
            self._fail(bug)
            raise
        finally:
            heartbeat.cancel()
            self._save_elapsed()

    async def _road(self) -> None:
        self._rooms.check_tools()
        proposers = {name: self._rooms.proposer(name) for name in self._options.proposers}
        await self._check_keys(proposers)
        with self._clock.profiling():
            profile = await self._profile()
        device = profile.device
        compiler = self._rooms.compiler(device)
        quiet = Quiet(exclusive=device.kind == "cpu")
        evaluator = self._rooms.evaluator(device, quiet)
        targets = self._choose(profile, proposers)
        try:
            pipeline = Pipeline(compiler, evaluator, quiet, device, in_order=self._options.device.startswith(PREFIX))
            await self._say_isolation(compiler)
            # an engine that died while it deployed had ended the search; what was confirmed since would only stir it
            over = self._session.state == "deploying"
            reason = self._session.stop_reason if over else ""
            if not over:
                reason = await self._search(profile, targets, pipeline, evaluator, proposers)
            if self._stop_asked:
                self._set_state("interrupted", stop_reason=reason)
                return
            self._search_phase = None
            # its workers would hold memory and cores while the model is timed
            await evaluator.close()
            await self._deploy(device, targets, compiler, reason)
            self._set_state("done", stop_reason=reason)
        finally:
            await evaluator.close()
            for proposer in proposers.values():
                await proposer.close()

    async def _check_keys(self, proposers: dict[str, Proposer]) -> None:
        """Say which models lack a key before anything takes long.

        Raises:
            EnvironmentFault: nobody is left who could write kernels.
        """
        lacking = {name: said for name, p in proposers.items() if isinstance(p, Keyed) and (said := await p.lacks())}
        if lacking and len(lacking) == len(proposers) and not self._options.start:
            raise EnvironmentFault(" ".join(dict.fromkeys(lacking.values())))
        for said in lacking.values():
            self._log("warning", said)

    async def _profile(self) -> Profile:
        saved = self._reader.profile(self._id)
        if saved is not None:
            device = await self._rooms.describe_device()
            if device.identity == saved.device.identity:
                return saved
            if self._reader.nodes(self._id, sources=False):
                raise EnvironmentFault(
                    f"This session was measured on {saved.device.model} with torch {saved.device.torch_version}, "
                    f"and this is {device.model} with torch {device.torch_version}: the timings do not compare.",
                    "Start a new session here with forge-tui run.",
                )
        self._set_state("profiling")
        place = self._store.workspace
        kept = profiles.find(self._options, place)
        if kept is not None:
            self._log("info", "The saved profile still holds and is used; forge-tui profile --fresh renews it.")
        profile = kept or profiles.keep(await self._rooms.profile(), self._options, place)
        if _waits(profile) or self._options.under == "compile":
            profile = profiles.keep(await self._what_if(profile), self._options, place)
        self._store.save_device(self._id, profile.device)
        self._store.save_profile(self._id, profile)
        for text in profile.warnings:
            self._log("warning", text)
        return profile

    async def _what_if(self, profile: Profile) -> Profile:
        """The profile with what its first targets would gain inside the model."""
        options, device = self._options, profile.device
        ids = [t.id for t in choose(profile, names=options.target_names, max_targets=options.max_targets,
                                    at_hand=lambda target: self._rooms.at_hand(target, device))]  # fmt: skip
        known = measured_gains(profile, options.under)
        ids = [key for key in ids if key not in known]
        if not ids:
            return profile
        self._log("info", f"The device waits for launches in {profile.idle_share:.0%} of the time: measuring what each "
                          "target could gain inside the model.")  # fmt: skip
        try:
            return await self._rooms.what_if(profile, ids, (options.under,),
                                             on_progress=lambda text: self._log("info", text))
        except ForgeError as error:
            self._log("warning", f"What the targets could gain was not measured: {error}")
            return profile

    def _choose(self, profile: Profile, proposers: dict[str, Proposer]) -> list[Target]:
        """The targets with the most headroom for which somebody can write a kernel; named ones always."""
        options, device = self._options, profile.device
        own = {start.target for start in options.start}
        for name in own:
            if name is not None and not any(target.called(name) for target in profile.targets):
                choose(profile, names=(name,), max_targets=1)  # raises, and says what there is

        def writable(target: Target) -> bool:
            task = Task(target=target, device=device, edge=Edge.DRAFT, parent=None, failed=None, best=None, lineage=(),
                        nodes=(), seed=options.seed)  # fmt: skip
            given = any(name is None or target.called(name) for name in own)
            return given or any(p.can(task) for p in proposers.values())

        single = [t for t in profile.targets if t.siblings and not writable(t)]
        if single:
            profile = _one_size(profile, {t.id for t in single})
            self._log("info", f"Nobody here writes kernels for sizes that vary, so each size is a target of its own: "
                              f"{', '.join(t.name for t in single)}.")  # fmt: skip
        ranked = choose(profile, names=options.target_names, max_targets=len(profile.targets), mode=options.under,
                        at_hand=lambda target: self._rooms.at_hand(target, device))  # fmt: skip
        if options.target_names:
            return ranked

        chosen = [target for target in ranked if writable(target)][: options.max_targets]
        kept = {target.id for target in chosen}
        for target in ranked[: options.max_targets]:
            if target.id not in kept:
                self._store.event(self._id, Kind.TARGET_OPENED, {
                    "target": target.id, "name": target.name, "usable": False, "eager_us": None,
                    "reason": f"no kernel for it can be written by {' or '.join(proposers) or 'anybody'}",
                })  # fmt: skip
        return chosen

    async def _say_isolation(self, compiler: Compiler) -> None:
        if isinstance(compiler, Isolated):
            found = await compiler.isolation()
            self._store.event(self._id, Kind.ISOLATION, {
                "isolated": bool(found.means), "short": found.short, "text": found.sentence,
                "level": "info" if found.means else "warning",
            })  # fmt: skip

    async def _search(
        self, profile: Profile, targets: list[Target], pipeline: Pipeline, evaluator: Evaluator,
        proposers: dict[str, Proposer],
    ) -> str:  # fmt: skip
        self._set_state("searching")
        usable = await self._open(targets, evaluator)
        if not usable:
            return "No target is left to search: " + (
                "none has enough headroom." if not targets else "none of them can be verified (see the log)."
            )
        options, roster = self._options, Roster(proposers)
        config = SearchConfig(
            seed=options.seed, proposers=tuple(proposers), max_evaluations=options.max_evaluations,
            model_ms=profile.model_ms, max_usd=options.max_usd, gpu_usd_per_hour=options.gpu_usd_per_hour,
            usd_per_percent=options.usd_per_percent,
            holds_usd=await restoring.holds(proposers) if options.max_usd is not None else {}, people=roster.people,
        )  # fmt: skip
        if not options.transfer:
            config = msgspec.structs.replace(config, max_transfers=0)
        places = self._store, self._reader, self._id
        search = Search(config, usable, restoring.found(*places, usable, profile.device, config.max_transfers))
        ledger = restoring.ledger(
            *places, search, max_usd=options.max_usd, log=self._log,
            rent_usd=lambda: options.gpu_usd_per_hour * self._clock.elapsed_s / 3600,
        )  # fmt: skip
        bench = EngineWorkbench(self._store, self._id, search, pipeline, profile.device, log=self._log)
        search.count_aside(sum(use.verdict not in ("", Verdict.INFRA) for use in self._reader.tool_uses(self._id)))
        for proposer in proposers.values():
            if isinstance(proposer, Booked):
                proposer.keep_books(ledger)
            if isinstance(proposer, Equipped):
                proposer.equip(bench)
        by_id = {target.id: target for target in usable}
        known = [node for node in self._reader.nodes(self._id) if node.target_id in by_id]
        undone = restoring.steps(self._reader, self._id, by_id)
        search.restore(known, restoring.failed_proposals(self._reader, self._id, search, roster), undone)
        for node in known:
            pipeline.restore(by_id[node.target_id], node)
        await self._say_costs(search, usable, profile.device, proposers)
        self._search_phase = SearchPhase(
            store=self._store, session=self._id, options=self._options, device=profile.device, search=search,
            pipeline=pipeline, roster=roster, ledger=ledger, targets=by_id, clock=self._clock,
        )  # fmt: skip
        if self._stop_asked:
            return "Stopped by request."
        begun = {node.idea for node in known if node.proposer == "person"}
        starts = tuple(s for s in self._options.start if f"own kernel {s.path}".strip() not in begun)
        unfinished = [node for node in known if node.evaluation is None]
        return await self._search_phase.run(unfinished, starts, undone)

    async def _say_costs(
        self, search: Search, targets: list[Target], device: Device, proposers: dict[str, Proposer]
    ) -> None:
        """What the rest of the search is likely to cost, before it does."""
        left = max(0, self._options.max_evaluations - search.evaluations)
        found = await estimate.by_target(targets, search.worth(), proposers, device, left, self._options.seed)
        text = estimate.sentence(found, self._options.max_usd)
        if text:
            self._store.event(self._id, Kind.LOG, {"level": "info", "text": text,
                                                   "estimate": msgspec.to_builtins(found)})  # fmt: skip

    async def _open(self, targets: list[Target], evaluator: Evaluator) -> list[Target]:
        usable: list[Target] = []
        for target in targets:
            check = await evaluator.open(target)
            self._store.event(self._id, Kind.TARGET_OPENED, {
                "target": target.id, "name": target.name, "usable": check.usable, "reason": check.reason,
                "eager_us": check.eager_us, "remarks": list(check.remarks),
            })  # fmt: skip
            if check.usable:
                usable.append(target)
            else:
                self._log("warning", f"{target.name} is left out: {check.reason}")
        return usable

    async def _deploy(self, device: Device, targets: list[Target], compiler: Compiler, reason: str) -> None:
        self._set_state("deploying", stop_reason=reason)
        confirmer = self._rooms.confirmer(device)
        try:
            winners = await confirming.winners(
                self._store, self._reader, self._id, targets, compiler, confirmer, self._options.seed, self._log,
                resumed=self._session.state == "deploying",
            )  # fmt: skip
        finally:
            # its workers would hold memory and cores while the model is timed
            await confirmer.close()
        deployment = await self._rooms.deploy(device, winners, self._on_deploy_progress)
        marks = {winner.node_id: winner.unsanitised for winner in winners}
        decisions = tuple(
            msgspec.structs.replace(d, unsanitised=marks.get(d.node_id, "")) for d in deployment.decisions
        )
        self._store.save_deployment(self._id, msgspec.structs.replace(deployment, decisions=decisions))

    # ---- bookkeeping

    def _on_deploy_progress(self, text: str, decision: DeployDecision | None) -> None:
        if decision is None:
            self._log("info", text)
            return
        self._store.event(self._id, Kind.DEPLOY_DECISION, {
            "target": decision.target_id, "deployed": decision.deployed, "why_not": decision.why_not,
            "speedup": decision.alone_speedup,
        })  # fmt: skip

    def _log(self, level: str, text: str) -> None:
        self._store.event(self._id, Kind.LOG, {"level": level, "text": text})

    def _set_state(self, state: SessionState, stop_reason: str = "") -> None:
        self._state = state
        self._store.set_state(self._id, state, stop_reason=stop_reason)

    def _fail(self, error: ForgeError) -> None:
        self._state = "failed"
        self._store.set_state(self._id, "failed", stop_reason=error.what, error={
            "what": error.what, "hint": error.hint, "exit_code": int(error.exit_code),
        })  # fmt: skip

    async def _heartbeat(self) -> None:
        while True:
            self._store.heartbeat(self._id)
            await asyncio.sleep(HEARTBEAT_S)
            self._save_elapsed()

    def _save_elapsed(self) -> None:
        """In pieces, so that a kill loses a heartbeat's worth at most."""
        elapsed_s, profile_s, search_s = self._clock.unsaved()
        self._store.add_elapsed(self._id, elapsed_s, profile_s=profile_s, search_s=search_s)


def _one_size(profile: Profile, ids: set[str]) -> Profile:
    """The profile with these targets for their own size alone."""
    targets = tuple(msgspec.structs.replace(t, siblings=()) if t.id in ids else t for t in profile.targets)
    return msgspec.structs.replace(profile, targets=targets)
