"""Whole sessions on `sim:FILE`: no compiler, no GPU, no torch."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forge_tui.cli import main, output
from forge_tui.cli.commands.sim import packaged
from forge_tui.core import landscapes
from forge_tui.core.errors import UsageError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Edge, ModelSpec, RunOptions, Verdict
from forge_tui.engine.loop import Engine
from forge_tui.engine.sim import SimRooms
from forge_tui.search.player import taken_apart
from forge_tui.search.recorded import TargetLandscape
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

FILE = packaged()["softmax-cpu"]
TINY = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.LayerNorm(96)), (torch.randn(32, 96),), {}
"""


def options(seed: int = 0, **changes) -> RunOptions:
    """A search of the packaged softmax."""
    fields = {"model": ModelSpec(text="x", path=str(FILE)), "device": "sim:softmax-cpu", "workspace": "",
              "proposers": ("templates", "sim"), "max_evaluations": 40, "seed": seed}  # fmt: skip
    return RunOptions(**(fields | changes))


def session(folder: Path, asked: RunOptions):
    """Run a session in this process; its nodes and the deployment."""
    workspace = Workspace(folder)
    workspace.prepare()
    with contextlib.closing(Store.open(workspace)) as store, contextlib.closing(Reader.open(workspace)) as reader:
        info = store.create_session(asked)
        store.acquire(info.id, 1)
        asyncio.run(Engine(store, reader, info, SimRooms(asked)).run())
        return reader.nodes(info.id), reader.deployment(info.id)


def summary(nodes) -> list[tuple[object, ...]]:
    """What of nodes must be equal."""
    return [(n.id, n.parent, n.edge, n.source, n.tunables, n.cost_usd, n.evaluation.verdict, n.evaluation.speedup)
            for n in nodes]  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """One search."""
    return session(tmp_path_factory.mktemp("one"), options())


def test_equal_seeds_give_equal_searches(searched, tmp_path):
    """Node for node; another seed finds another way."""
    again, deployment = session(tmp_path / "again", options())
    assert summary(again) == summary(searched[0])
    assert deployment == searched[1]
    other, _ = session(tmp_path / "other", options(seed=1))
    assert summary(other) != summary(searched[0])


def test_verdicts_are_the_recorded_ones(searched):
    """Every node that was evaluated is a recorded point with its verdict, or a mistake of the player."""
    land = TargetLandscape(landscapes.read(FILE).targets[0])
    nodes, _ = searched
    verdicts = Counter(n.evaluation.verdict for n in nodes)
    assert len(nodes) == 40
    assert verdicts[Verdict.FASTER] >= 3
    assert len(verdicts) >= 4
    assert {n.edge for n in nodes} >= {Edge.DRAFT, Edge.IMPROVE, Edge.TUNE}
    for n in nodes:
        source, fault, _ = taken_apart(n.source)
        index = land.find(source, n.tunables)
        found = n.evaluation.verdict
        if found is Verdict.DUPLICATE:
            continue
        if index is None:
            assert (n.edge, found) == (Edge.TUNE, Verdict.REFUSED)
        elif fault is not None:
            assert found is fault
        elif found.right:
            value = land.value(index)
            assert n.evaluation.speedup == pytest.approx(2.718281828**value, rel=0.25)
        else:
            assert found is land.points[land.original(index)].verdict
            assert n.evaluation.reason == land.points[land.original(index)].reason


def test_the_model_gains_by_amdahls_law(searched):
    """Nothing is deployed; the time is worked out from the recorded share, and said to be."""
    nodes, deployment = searched
    found = landscapes.read(FILE)
    target = found.targets[0].target
    (decision,) = deployment.decisions
    winner = next(n for n in nodes if n.id == decision.node_id)
    assert winner.evaluation.confirmation.passed
    assert "no kernel to run under a sanitizer" in decision.unsanitised
    spent_ms = target.calls * target.time_us / 1e3
    saved_ms = spent_ms * (1 - 1 / winner.evaluation.speedup)
    assert deployment.deployed_ms == pytest.approx(found.model_ms - saved_ms, rel=0.1)
    assert deployment.speedup_ci[0] <= deployment.speedup <= deployment.speedup_ci[1]


def test_pace_waits_as_long_as_it_took(tmp_path):
    """With a pace, an evaluation takes its part of the recorded seconds."""
    import time

    land = TargetLandscape(landscapes.read(FILE).targets[0])
    rooms = SimRooms(options(pace=0.05))
    compiler, target = rooms.compiler(landscapes.read(FILE).device), land.target
    started = time.monotonic()
    asyncio.run(compiler.build(target, land.sources[0].text, {}))
    assert time.monotonic() - started >= 0.05 * land.points[land.draft(0)].seconds[0]


def test_the_command_line(tmp_path):
    """`run --device sim:NAME --json` without a model ends with a gain, and the engine imports no torch."""
    done = subprocess.run(
        [sys.executable, "-m", "forge_tui", "run", "--device", "sim:softmax-cpu", "--evaluations", "12", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["evaluations"], report["state"]) == (12, "done")
    assert report["speedup"] > 1
    assert report["cost_usd"] > 0
    assert (report["model"], report["device"]) == (landscapes.read(FILE).model, "sim:softmax-cpu")
    code = "import sys, forge_tui.engine.__main__, forge_tui.engine.sim; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_landscape_recorded_here_is_searched_here(tmp_path):
    """The README's command on a tiny model, through compiler, judge and timer; then a search of what it wrote."""
    (tmp_path / "model.py").write_text(TINY)

    def forge(*arguments: str) -> dict[str, object]:
        done = subprocess.run([sys.executable, "-m", "forge_tui", *arguments, "--json"], cwd=tmp_path, timeout=250,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode in (0, 5), done.stderr
        return json.loads(done.stdout)

    command = ["record", "model.py", "--device", "cpu", "--target", "LayerNorm", "--output", "norm.landscape"]
    found = forge(*command, "--limit", "3", "--threads", "1")
    assert (found["new"], found["points"], found["complete"]) == (3, 3, False)
    recorded = landscapes.read(tmp_path / "norm.landscape")
    (norm,) = recorded.targets
    assert (norm.target.name, norm.target.capture, recorded.model) == ("LayerNorm", "", "model.py")
    assert norm.check.usable
    right = [p for p in norm.points if p.verdict.right]
    assert right
    # a hopelessly slow kernel is given up before its blocks are full
    assert all(4 <= len(p.samples) <= 4 * landscapes.BLOCKS and p.seconds[2] > 0 for p in right)
    assert any(len(p.samples) == 4 * landscapes.BLOCKS for p in right)
    report = forge("run", "--device", "sim:norm.landscape", "--no-templates", "--evaluations", "4")
    assert report["evaluations"] == 4


@pytest.mark.parametrize(("arguments", "said"), [
    (["run"], "Missing argument 'MODEL'."),
    (["run", "--device", "sim:softmax-cpux"], "Did you mean sim:softmax-cpu?"),
    (["run", "--device", "sim:"], "There is no landscape"),
    (["run", "sim:none"], "There is no landscape none."),
    (["run", "--device", "sim:bad.landscape"], "is not a recorded landscape"),
    (["run", "other.py", "--device", "sim:softmax-cpu"], "was recorded of"),
    (["run", "--device", "sim:softmax-cpu", "--model", "gpt-5"], "--model gpt-5 brings kernels that no recorded"),
    (["run", "--device", "sim:softmax-cpu", "--start", "x.cpp"], "--start brings kernels that no recorded"),
    (["run", "--device", "sim:softmax-cpu", "--dtype", "bfloat16"], "A recorded landscape has its own model"),
    (["run", "example:resnet", "--model", "sim"], "--model sim plays a model on recorded landscapes alone."),
    (["run", "example:resnet", "--pace", "1"], "--pace is for recorded landscapes."),
    (["profile", "example:resnet", "--device", "sim:softmax-cpu"], "which can only be searched"),
    (["record", "example:resnet", "--output", "no/where"], "There is no folder no."),
])  # fmt: skip
def test_what_makes_no_sense_is_a_sentence(tmp_path, monkeypatch, capsys, arguments, said):
    """Exit code 2, before an engine starts."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.landscape").write_text("hello\n")
    assert main.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_changed_file_is_not_gone_on_with(tmp_path):
    """Rooms over a file that was damaged meanwhile say so."""
    path = tmp_path / "cut.landscape"
    path.write_bytes(FILE.read_bytes()[:-10])
    with pytest.raises(UsageError, match="is damaged: it is cut short"):
        SimRooms(options(model=ModelSpec(text="x", path=str(path)))).check_tools()
