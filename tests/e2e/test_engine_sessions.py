"""Whole sessions through the engine and the real store, on a simulated landscape in this process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections import Counter

import msgspec
import pytest
import store_fixture as fixture

from forge_tui.core.errors import EnvironmentFault, ModelError, UsageError
from forge_tui.core.events import Kind
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import TargetCheck
from forge_tui.core.profiles import Profile, WhatIf
from forge_tui.core.records import (
    Built,
    Confirmation,
    DeployDecision,
    Deployment,
    Device,
    Evaluation,
    LaunchPlan,
    LlmCall,
    ModelSpec,
    Node,
    Proposal,
    RunOptions,
    StartKernel,
    Verdict,
)
from forge_tui.engine.loop import Engine
from forge_tui.search.landscape import Design, Landscape
from forge_tui.search.simulate import DEVICE, SimulatedEvaluator, SimulatedProposer, target, write
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

TARGETS = [target("norm", time_us=400.0, floor_us=40.0, share=0.4), target("softmax", share=0.3)]
OPTIONS = RunOptions(model=ModelSpec(text="sim.py", path="/sim.py"), device="cpu", workspace="",
                     proposers=("simulated",), max_evaluations=14, seed=3)  # fmt: skip


class FakeRooms:
    """Rooms without processes; counts what was asked of them."""

    def __init__(self, **behaviour):
        self.land = {t.id: Landscape(i + 1) for i, t in enumerate(TARGETS)}
        self.behaviour = behaviour
        self.device = behaviour.get("device", DEVICE)
        self.asked = Counter()
        self.sources = {}
        self.evaluated = Counter()
        self.winners = []
        self.confirmed = []
        self.on_evaluate = behaviour.get("on_evaluate", lambda count: None)

    def check_tools(self):
        if "tools" in self.behaviour:
            raise self.behaviour["tools"]

    async def describe_device(self):
        return self.device

    async def profile(self):
        self.asked["profile"] += 1
        if "profile" in self.behaviour:
            raise self.behaviour["profile"]
        busy_ms = self.behaviour.get("busy_ms", 2.0)
        return Profile(device=self.device, model_ms=2.0, busy_ms=busy_ms, overhead=1.1, hotspots=(),
                       targets=tuple(TARGETS))  # fmt: skip

    async def what_if(self, profile, target_ids, modes=(), *, on_progress):
        self.asked["what_if"] += 1
        if isinstance(self.behaviour.get("gain"), Exception):
            raise self.behaviour["gain"]
        gains = {target_ids[0]: 0.0, target_ids[1]: 0.5}
        rows = tuple(WhatIf(mode=modes[0], target_ids=(key,), ms=2.0 - gain, base_ms=2.0, calls=1)
                     for key, gain in gains.items())  # fmt: skip
        return msgspec.structs.replace(profile, what_ifs=rows)

    def compiler(self, device):
        return self

    async def build(self, target, source, tunables):
        sha256 = hashlib.sha256(f"{source}{sorted(tunables.items())}".encode()).hexdigest()
        self.sources[sha256] = (source, tunables)
        return Built(path="", sha256=sha256, language="cpp", plan=LaunchPlan(), compile_s=0.0)

    def evaluator(self, device, quiet):
        return self

    def confirmer(self, device):
        return self

    async def confirm(self, target, built, node, seed):
        self.asked["confirm"] += 1
        self.confirmed.append((node.id, built.sha256, seed))
        found = self.behaviour.get("confirm", lambda node: Confirmation(verdict=Verdict.FASTER))(node)
        await asyncio.sleep(0)
        return found

    async def open(self, target):
        self.asked["open"] += 1
        return TargetCheck(usable=True, eager_us=target.time_us)

    async def evaluate(self, target, built, seed):
        self.asked["evaluate"] += 1
        self.on_evaluate(self.asked["evaluate"])
        await asyncio.sleep(0)
        if self.behaviour.get("infra"):
            return Evaluation(verdict=Verdict.INFRA, reason="The judge fell over.")
        if self.behaviour.get("fast"):
            return fixture.faster(1.2 + self.asked["evaluate"] % 5 / 10 + self.asked["evaluate"] / 1000,
                                  sha256=built.sha256)  # fmt: skip
        source, tunables = self.sources[built.sha256]
        self.evaluated[target.id, built.sha256] += 1
        node = Node(id=1, target_id=target.id, parent=None, edge="draft", proposer="x", source=source, language="cpp",
                    tunables=tunables)  # fmt: skip
        found = SimulatedEvaluator(self.land).judge(node, target.time_us)
        return msgspec.structs.replace(found, sha256=built.sha256)

    async def close(self):
        pass

    def proposer(self, name):
        return self.behaviour.get("proposer") or CountedProposer(self.land, self.asked)

    def at_hand(self, target, device):
        return False

    async def deploy(self, device, winners, on_progress):
        self.winners = list(winners)
        decisions = tuple(DeployDecision(target_id=w.target.id, node_id=w.node_id, deployed=True) for w in winners)
        for decision in decisions:
            on_progress("decided", decision)
        return Deployment(baseline_ms=2.0, deployed_ms=1.0, speedup=2.0, speedup_ci=(1.9, 2.1), max_abs_error=0.0,
                          rms_error=0.0, within_tolerance=True, decisions=decisions)  # fmt: skip


class CountedProposer(SimulatedProposer):
    """Counts its calls, each of which costs 25 cents."""

    def __init__(self, land, asked):
        super().__init__(land)
        self._asked = asked

    async def propose(self, task):
        self._asked["propose"] += 1
        await asyncio.sleep(0)
        self._asked["came back"] += 1
        call = LlmCall(model="m", prompt="p", reply="r", cost_usd=0.25, priced=True)
        return msgspec.structs.replace(self.write(task), call=call)


class Session:
    """A workspace with one session, and engines on it."""

    def __init__(self, folder):
        self.workspace = Workspace(folder)
        self.workspace.prepare()
        self.id = None

    async def run(self, rooms, options=OPTIONS, meanwhile=None):
        """One engine on the session from start to end."""
        store = Store.open(self.workspace)
        try:
            if self.id is None:
                self.id = store.create_session(options).id
            reader = Reader.open(self.workspace)
            info = reader.session(self.id)
            store.acquire(self.id, 1)
            engine = Engine(store, reader, msgspec.structs.replace(info, options=options), rooms)
            if meanwhile is not None:
                meanwhile(engine)
            async with asyncio.timeout(60):
                await engine.run()
        finally:
            store.release(self.id)
            store.close()

    @property
    def reader(self):
        return Reader.open(self.workspace)

    def tree(self):
        """Nodes as (id, target, parent, edge, verdict)."""
        return [(n.id, n.target_id, n.parent, n.edge, n.evaluation and n.evaluation.verdict)
                for n in self.reader.nodes(self.id)]  # fmt: skip


@pytest.fixture
def session(tmp_path):
    """An empty workspace."""
    return Session(tmp_path / ".forge")


async def test_a_session_goes_from_profile_to_deployment(session):
    """Every candidate has a verdict, the fastest of each target are deployed, and the report says so."""
    rooms = FakeRooms(fast=True)
    await session.run(rooms)
    info = session.reader.session(session.id)
    assert info.state == "done"
    assert info.stop_reason == "All 14 evaluations are used up."
    nodes = session.reader.nodes(session.id)
    assert len(nodes) == 14
    assert all(node.evaluation is not None for node in nodes)
    assert {winner.target.id for winner in rooms.winners} == {t.id for t in TARGETS}
    for winner in rooms.winners:
        rivals = [n for n in nodes if n.target_id == winner.target.id and n.evaluation.verdict is Verdict.FASTER]
        best = max(rivals, key=lambda n: n.evaluation.speedup)
        assert (winner.node_id, winner.built.sha256) == (best.id, best.evaluation.sha256)
    from forge_tui.report.build import run_report

    report = run_report(session.reader, session.id)
    assert (report.speedup, report.baseline_ms, report.evaluations) == (2.0, 2.0, 14)
    assert report.cost_usd == pytest.approx(0.25 * rooms.asked["propose"])


def faster_nodes(session, target):
    """Nodes of a target that the search found faster, the best first, as stored before any confirmation."""
    with sqlite3.connect(session.workspace.database) as raw:
        rows = raw.execute("SELECT n.id FROM nodes n JOIN evaluations e ON e.node_id = n.id AND e.session_id = "
                           "n.session_id WHERE n.target_id = ? AND e.verdict = 'faster' ORDER BY e.speedup DESC",
                           (target,)).fetchall()  # fmt: skip
    return [row[0] for row in rows]


async def test_a_winner_that_is_not_confirmed_makes_way_for_the_next_best(session):
    """The node changes its standing with the reason; the next best is tried, and is deployed if it holds."""
    failing = set()

    def confirm(node):
        first = node.target_id not in failing
        failing.add(node.target_id)
        sha256 = node.evaluation.sha256
        if first:
            return Confirmation(verdict=Verdict.REJECTED, reason="On fresh inputs: wrong.", sha256=sha256)
        return Confirmation(verdict=Verdict.FASTER, speedup=1.5, sha256=sha256,
                            unsanitised="Racecheck did not end within 150 s.")  # fmt: skip

    rooms = FakeRooms(confirm=confirm, fast=True)
    await session.run(rooms)
    by_target = {t.id: faster_nodes(session, t.id) for t in TARGETS}
    both = [key for key, nodes in by_target.items() if len(nodes) > 1]
    assert len(both) == 2
    nodes = {node.id: node for node in session.reader.nodes(session.id)}
    for winner in rooms.winners:
        first, second, *_ = by_target[winner.target.id]
        assert winner.node_id == second
        assert winner.unsanitised == "Racecheck did not end within 150 s."
        assert nodes[first].evaluation.verdict is Verdict.REJECTED
        assert nodes[first].evaluation.reason == "In the final confirmation: On fresh inputs: wrong."
        assert nodes[second].evaluation.confirmation.speedup == 1.5
    assert {winner.target.id for winner in rooms.winners} == set(both)
    decisions = session.reader.deployment(session.id).decisions
    assert {d.unsanitised for d in decisions} == {"Racecheck did not end within 150 s."}
    from forge_tui.report.build import run_report

    report = run_report(session.reader, session.id)
    held = [t for t in report.targets if t.confirmed]
    assert {(t.confirmed_speedup, t.unsanitised) for t in held} == {(1.5, "Racecheck did not end within 150 s.")}
    assert sum("was not confirmed (rejected): On fresh inputs: wrong." in text for text in report.warnings) == len(
        [nodes for nodes in by_target.values() if nodes]
    )
    assert sum("is unsanitised. Racecheck did not end" in text for text in report.warnings) == len(rooms.winners)


async def test_a_confirmation_is_made_once_over_all_engines(session):
    """A resumed session takes what an earlier engine confirmed; seeds are those of no evaluation and repeat."""
    engines = []

    def confirm(node):
        if len(first.confirmed) == 2 and not second.confirmed:
            engines[0].ask_stop()
        return Confirmation(verdict=Verdict.FASTER, speedup=1.5, sha256=node.evaluation.sha256)

    first, second = FakeRooms(confirm=confirm, fast=True), FakeRooms(confirm=confirm, fast=True)
    await session.run(first, meanwhile=engines.append)
    assert session.reader.session(session.id).state == "interrupted"
    assert (len(first.confirmed), first.winners) == (2, [])
    await session.run(second)
    assert session.reader.session(session.id).state == "done"
    assert second.confirmed == [first.confirmed[1]], "the one that was in flight, with the same seed"
    assert [(w.node_id, w.built.sha256) for w in second.winners] == [entry[:2] for entry in first.confirmed]
    for node_id, _, seed in first.confirmed:
        assert seed == (OPTIONS.seed * 1_000_003 + node_id * 101 + 50) % 2**31
    kinds = Counter(e.kind for e in session.reader.events(session.id, limit=10**6))
    assert kinds[Kind.NODE_CONFIRMED] == 2


async def test_a_confirmation_that_fails_through_us_is_no_confirmation(session):
    """It is tried again, then nothing is deployed unconfirmed, and nothing is held against the kernel."""
    broken = Confirmation(verdict=Verdict.INFRA, reason="The judge fell over.")
    rooms = FakeRooms(fast=True, confirm=lambda node: broken)
    await session.run(rooms)
    assert rooms.winners == []
    assert set(Counter(node_id for node_id, _, _ in rooms.confirmed).values()) == {2}
    nodes = session.reader.nodes(session.id)
    assert all(n.evaluation.confirmation is None for n in nodes)
    assert any(n.evaluation.verdict is Verdict.FASTER for n in nodes)


async def test_noise_is_not_confirmed_for_ever(session):
    """After eight kernels of a target that did not hold, the rest is not tried, and the log says so.

    Nor does an engine try more that takes over from one that died before the deployment.
    """
    options = msgspec.structs.replace(OPTIONS, max_evaluations=60)
    behaviour = {"fast": True, "confirm": lambda node: Confirmation(
        verdict=Verdict.INCONCLUSIVE, reason="It spans 1.", speedup=1.0, sha256=node.evaluation.sha256,
    )}  # fmt: skip
    rooms = FakeRooms(**behaviour)
    await session.run(rooms, options=options)
    tried = Counter(node_id for node_id, _, _ in rooms.confirmed)
    per_target = [sum(node in tried for node in faster_nodes(session, t.id)) for t in TARGETS]
    found = [len(faster_nodes(session, t.id)) for t in TARGETS]
    assert per_target == [min(8, count) for count in found]
    assert max(found) > 8
    logs = [e.data["text"] for e in session.reader.events(session.id, limit=10**6) if e.kind == Kind.LOG]
    assert sum("were not confirmed: the rest is not tried" in text for text in logs) == sum(n > 8 for n in found)
    with contextlib.closing(Store.open(session.workspace)) as store:
        store.set_state(session.id, "deploying", stop_reason="Enough.")
    again = FakeRooms(**behaviour)
    await session.run(again, options=options)
    assert (again.confirmed, again.asked["evaluate"]) == ([], 0)
    assert session.reader.session(session.id).stop_reason == "Enough."


async def test_a_stopped_session_goes_on_where_it_was(session):
    """After a stop the resumed session profiles nothing, evaluates nothing twice, and ends with its whole budget."""
    first = FakeRooms()
    engines = []
    first.on_evaluate = lambda count: engines[0].ask_stop() if count == 5 else None
    await session.run(first, meanwhile=engines.append)
    info = session.reader.session(session.id)
    assert (info.state, info.stop_reason) == ("interrupted", "Stopped by request.")
    done = {n.id: n.evaluation for n in session.reader.nodes(session.id) if n.evaluation is not None}
    assert 4 <= len(done) < 14
    second = FakeRooms()
    await session.run(second)
    nodes = session.reader.nodes(session.id)
    assert session.reader.session(session.id).state == "done"
    assert len(nodes) == 14
    assert all(n.evaluation == done[n.id] for n in nodes if n.id in done)
    assert second.asked["profile"] == 0
    # what was on its way at the stop did not come back
    assert first.asked["came back"] + second.asked["came back"] == sum(n.edge != "tune" for n in nodes)
    both = first.evaluated + second.evaluated
    assert all(both[key] == 1 for key in both if key[1] in {e.sha256 for e in done.values()})


async def test_a_candidate_in_flight_at_a_kill_is_evaluated_and_not_paid_again(session):
    """A node without a verdict keeps its source: the next engine evaluates it and asks nobody for it."""
    rooms = FakeRooms()
    await session.run(rooms, options=msgspec.structs.replace(OPTIONS, max_evaluations=1))
    store = Store.open(session.workspace)
    store.acquire(session.id, 1)
    store.set_state(session.id, "interrupted")
    source = session.reader.nodes(session.id)[0].source.replace("quality=", "quality=-0", 1)
    lost = Node(id=2, target_id=TARGETS[0].id, parent=None, edge="draft", proposer="simulated", language="cpp",
                source=source, key="k")  # fmt: skip
    store.add_node(session.id, lost)
    store.release(session.id)
    store.close()
    again = FakeRooms()
    await session.run(again, options=msgspec.structs.replace(OPTIONS, max_evaluations=2))
    nodes = session.reader.nodes(session.id)
    assert [n.id for n in nodes] == [1, 2]
    assert nodes[1].evaluation is not None
    assert again.asked["propose"] == 0


async def test_a_second_session_takes_the_saved_profile(session):
    """In one workspace the model is profiled once, and the log says so; after a change it is profiled again."""
    first, second, third = FakeRooms(), FakeRooms(), FakeRooms()
    few = msgspec.structs.replace(OPTIONS, max_evaluations=2)
    await session.run(first, options=few)
    before, session.id = session.id, None
    await session.run(second, options=few)
    assert (first.asked["profile"], second.asked["profile"]) == (1, 0)
    assert session.reader.profile(session.id) == session.reader.profile(before)
    logs = [e.data["text"] for e in session.reader.events(session.id) if e.kind == Kind.LOG]
    assert logs[0].startswith("The saved profile still holds and is used")
    session.id = None
    changed = msgspec.structs.replace(few, model=msgspec.structs.replace(few.model, content_hash="new"))
    await session.run(third, options=changed)
    assert third.asked["profile"] == 1


GPU = msgspec.structs.replace(DEVICE, name="cuda:0")


async def test_where_the_device_waits_targets_are_tried_inside_the_model(session):
    """On a GPU that waits for launches a target that gains nothing inside the model is not searched."""
    rooms = FakeRooms(device=GPU, busy_ms=1.0)
    await session.run(rooms, options=msgspec.structs.replace(OPTIONS, device="cuda:0"))
    assert rooms.asked["what_if"] == 1
    first = max(TARGETS, key=lambda t: t.headroom_ms)
    assert first.id not in {node.target_id for node in session.reader.nodes(session.id)}
    assert len(session.reader.profile(session.id).what_ifs) == 2


@pytest.mark.parametrize("behaviour", [{"device": GPU, "busy_ms": 1.95}, {"busy_ms": 1.0}])
async def test_where_it_does_not_wait_nothing_is_tried(session, behaviour):
    """A busy GPU, and the CPU, need no such measurement."""
    rooms = FakeRooms(**behaviour)
    await session.run(rooms, options=msgspec.structs.replace(OPTIONS, device=rooms.device.name, max_evaluations=2))
    assert rooms.asked["what_if"] == 0


async def test_a_failed_trial_costs_nothing_but_itself(session):
    """Where the trial cannot be made the search goes by headroom, and the log says so."""
    rooms = FakeRooms(device=GPU, busy_ms=1.0, gain=EnvironmentFault("The worker died.", "Look at the log."))
    await session.run(rooms, options=msgspec.structs.replace(OPTIONS, device="cuda:0", max_evaluations=2))
    logs = [e.data["text"] for e in session.reader.events(session.id) if e.kind == Kind.LOG]
    assert any("was not measured: The worker died." in text for text in logs)
    assert session.reader.nodes(session.id)


async def test_the_same_seed_gives_the_same_tree(tmp_path):
    """Two sessions of one seed have equal trees; another seed has another."""
    trees = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        session = Session(tmp_path / name)
        await session.run(FakeRooms(), options=msgspec.structs.replace(OPTIONS, seed=seed))
        trees.append(session.tree())
    assert trees[0] == trees[1]
    assert trees[0] != trees[2]


async def test_the_money_limit_holds(session):
    """At 25 cents a call, a budget of one dollar is not passed once the price is known."""
    rooms = FakeRooms()
    options = msgspec.structs.replace(OPTIONS, max_usd=1.6, max_evaluations=100, usd_per_percent=1e6)
    await session.run(rooms, options=options)
    info = session.reader.session(session.id)
    assert info.stop_reason == "$1.25 of the budget of $1.60 are spent, and one more model call may cost $0.38."
    assert rooms.asked["propose"] == 5
    assert info.cost_usd == pytest.approx(1.25)


@pytest.mark.parametrize(("where", "error", "code"), [
    ("profile", ModelError("The model's forward raised ValueError: no.", "Mend it."), 2),
    ("tools", EnvironmentFault("No C++ compiler was found."), 4),
])  # fmt: skip
async def test_a_fault_ends_the_session_with_its_sentence(session, where, error, code):
    """A model's or the machine's fault is in the store with sentence, hint and exit code."""
    with pytest.raises(type(error)):
        await session.run(FakeRooms(**{where: error}))
    info = session.reader.session(session.id)
    assert info.state == "failed"
    assert info.error == {"what": error.what, "hint": error.hint, "exit_code": code}
    assert session.reader.events(session.id)[-1].kind == Kind.FAILED


async def test_a_bug_is_told_and_raised(session):
    """An unexpected exception leaves the session failed with exit code 1 and is not swallowed."""
    with pytest.raises(ZeroDivisionError):
        await session.run(FakeRooms(profile=ZeroDivisionError("x")))
    assert session.reader.session(session.id).error["exit_code"] == 1


async def test_failures_of_ours_do_not_loop_for_ever(session):
    """When nothing can be evaluated the search ends and says why; no candidate is blamed."""
    rooms = FakeRooms(infra=True)
    await session.run(rooms)
    info = session.reader.session(session.id)
    assert "failed for reasons outside the kernels: The judge fell over." in info.stop_reason
    assert rooms.asked["evaluate"] < 40


class RefusingProposer:
    """Has no right key."""

    name = "simulated"

    def can(self, task):
        return True

    async def propose(self, task):
        return Proposal(source=None, failure="The key was refused.", infra=True, fatal=True)

    async def close(self):
        pass


async def test_a_proposer_that_cannot_work_ends_the_search_with_its_reason(session):
    """A refused key is said once and not asked again and again."""
    await session.run(FakeRooms(proposer=RefusingProposer()))
    info = session.reader.session(session.id)
    assert "The key was refused." in info.stop_reason
    failed = [e for e in session.reader.events(session.id) if e.kind == Kind.PROPOSAL_FAILED]
    assert 1 <= len(failed) <= 4


class Keyless(RefusingProposer):
    """Knows beforehand that it has no key."""

    async def lacks(self):
        return "m needs M_API_KEY. Set it in the environment."


async def test_a_missing_key_is_said_before_anything_takes_long(session):
    """Where nobody else writes kernels the session ends before it profiles."""
    rooms = FakeRooms(proposer=Keyless())
    with pytest.raises(EnvironmentFault, match=r"^m needs M_API_KEY"):
        await session.run(rooms)
    assert rooms.asked["profile"] == 0
    assert session.reader.session(session.id).state == "failed"


async def test_a_missing_key_of_one_of_two_is_a_warning(session, monkeypatch):
    """The other one goes on, and the sentence stands before the profile in the log."""
    rooms = FakeRooms()
    usual = rooms.proposer
    monkeypatch.setattr(rooms, "proposer", lambda name: Keyless() if name == "m" else usual(name))
    await session.run(rooms, msgspec.structs.replace(OPTIONS, proposers=("simulated", "m"), max_evaluations=3))
    assert session.reader.session(session.id).state == "done"
    kinds = [(e.kind, e.data.get("text", "")) for e in session.reader.events(session.id)]
    said = next(i for i, (kind, text) in enumerate(kinds) if kind == Kind.LOG and text.startswith("m needs M_API_KEY"))
    assert said < next(i for i, (kind, _) in enumerate(kinds) if kind == Kind.PROFILED)


async def test_timings_of_another_machine_are_not_mixed(session):
    """A session with verdicts refuses to go on where timings do not compare."""
    engines = []
    rooms = FakeRooms()
    rooms.on_evaluate = lambda count: engines[0].ask_stop() if count == 2 else None
    await session.run(rooms, meanwhile=engines.append)
    other = Device(**{**msgspec.structs.asdict(DEVICE), "model": "another processor"})
    with pytest.raises(EnvironmentFault, match="do not compare"):
        await session.run(FakeRooms(device=other))


async def test_a_persons_kernel_for_no_target_ends_the_session_at_once(session):
    """As with `--target`: nothing is searched for an hour without the kernel that was asked for."""
    start = StartKernel(source="", language="cpp", target="sofmax", path="mine.cpp")
    options = msgspec.structs.replace(OPTIONS, start=(start,), max_evaluations=3)
    with pytest.raises(UsageError, match=r"Did you mean softmax\?"):
        await session.run(FakeRooms(), options=options)
    assert session.reader.nodes(session.id) == []


async def test_a_persons_kernel_is_evaluated_first_and_once(session):
    """`--start` seeds the named target with a root of its own; a resume does not begin it again."""
    start = StartKernel(source=write(Design(0, knobs=(1, 1, 1))), language="cpp", target="softmax", path="mine.cpp")
    options = msgspec.structs.replace(OPTIONS, start=(start,), max_evaluations=3)
    await session.run(FakeRooms(), options=options)
    await session.run(FakeRooms(), options=msgspec.structs.replace(options, max_evaluations=5))
    starts = [n for n in session.reader.nodes(session.id) if n.edge == "start"]
    assert [(n.target_id, n.proposer, n.idea) for n in starts] == [(TARGETS[1].id, "person", "own kernel mine.cpp")]

