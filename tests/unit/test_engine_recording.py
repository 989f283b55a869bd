"""Recording: every point of the grid once, whatever interrupts it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import recording_rooms
from recording_rooms import LANDSCAPE, Rooms, recording

from forge_tui.core import landscapes
from forge_tui.core.errors import EnvironmentFault, UsageError
from forge_tui.core.records import Verdict
from forge_tui.engine import recording as engine_recording
from forge_tui.engine.recording import MOST_POINTS, grid_of, sources_of

TESTS = Path(recording_rooms.__file__).parent
GRID = 96


def test_the_grid_is_wide_and_starts_with_the_defaults(monkeypatch):
    """Each template source once with its own settings first; any beginning of the order is an even sample."""
    monkeypatch.setattr(engine_recording, "MOST_POINTS", MOST_POINTS)
    sources = sources_of(LANDSCAPE.targets[0].target, LANDSCAPE.device)
    order = grid_of(sources)
    assert len(order) == len(set(order)) == 720 <= MOST_POINTS
    firsts = [tuple(values[0] for values in source.tunables.values()) for source in sources]
    assert order[: len(sources)] == list(enumerate(firsts))
    part = Counter(setting[0] for _, setting in order[:180])
    assert set(part) == set(range(6))
    assert min(part.values()) > 15


def test_cuda_sources_get_more_switches(monkeypatch):
    """Residency and fast arithmetic beside the template's own tunables, whose defaults stay first; no grid explodes."""
    monkeypatch.setattr(engine_recording, "MOST_POINTS", MOST_POINTS)
    device = msgspec.structs.replace(LANDSCAPE.device, name="cuda:0", arch="sm_90a", sms=132, smem_optin=232448)
    for recorded in LANDSCAPE.targets:
        sources = sources_of(recorded.target, device)
        assert 300 <= len(grid_of(sources)) <= MOST_POINTS
        for source in sources:
            assert {"RESIDENT", "FAST", "THREADS"} <= set(source.tunables)
            assert (source.tunables["RESIDENT"][0], source.tunables["FAST"][0]) == (0, 0)
            assert "__launch_bounds__(THREADS > LANES ? THREADS : LANES, RESIDENT)" in source.text


def test_a_whole_grid(tmp_path):
    """Each point has its verdict, equal machine code is evaluated once, and the journal is gone."""
    rooms = Rooms()
    found = asyncio.run(recording(tmp_path, rooms).run())
    written = landscapes.read(tmp_path / "out.landscape")
    points = written.targets[0].points
    assert (found.points, found.new, found.grid, found.complete, found.reason) == (GRID, GRID, GRID, True, "")
    # half of it does not compile; of three schedules two give the same code as the first
    assert found.verdicts == {"compile_error": 48, "faster": 16, "duplicate": 32}
    assert len(rooms.evaluated) == len(set(rooms.evaluated)) == 16
    assert len({(p.source, p.setting) for p in points}) == GRID
    assert all(len(p.samples) == 4 * landscapes.BLOCKS for p in points if p.verdict is Verdict.FASTER)
    assert (written.model, written.targets[0].check.eager_us) == ("m.py:f", 50.0)
    assert found.best["Softmax"] == pytest.approx(max(map(landscapes.speedup, points)))
    assert not (tmp_path / "out.landscape.part").exists()
    again = Rooms()
    found = asyncio.run(recording(tmp_path, again).run())
    assert (found.new, found.complete, again.evaluated, again.opened) == (0, True, [], 0)
    assert landscapes.read(tmp_path / "out.landscape") == written


def test_limits_stop_it_and_the_same_command_goes_on(tmp_path):
    """`--limit` counts new points; the file is a landscape at every stage."""
    first = asyncio.run(recording(tmp_path, Rooms(), limit=10).run())
    assert (first.points, first.new, first.complete) == (10, 10, False)
    assert first.reason == "the limit of 10 points is reached"
    second = asyncio.run(recording(tmp_path, Rooms(), limit=5).run())
    assert (second.points, second.new) == (15, 5)
    assert len(landscapes.read(tmp_path / "out.landscape").targets[0].points) == 15
    none = asyncio.run(recording(tmp_path, Rooms(), max_minutes=0).run())
    assert (none.new, none.reason) == (0, "the limit of 0 minutes is reached")
    # the file alone is enough to go on
    (tmp_path / "out.landscape.part").unlink()
    rooms = Rooms()
    last = asyncio.run(recording(tmp_path, rooms).run())
    assert (last.points, last.new, last.complete) == (GRID, GRID - 15, True)


def test_killed_at_any_point_it_loses_no_more_than_what_was_in_flight(tmp_path):
    """Killed three times, then to the end: every point is there once, and what was written is not done again."""
    journal = tmp_path / "out.landscape.part"
    known = 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, str(TESTS / "recording_rooms.py"), str(tmp_path)])
        try:
            deadline = time.monotonic() + 60
            while not journal.exists() or journal.read_bytes().count(b"\n") < 1 + known + 15:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        known = journal.read_bytes().count(b"\n") - 1
    whole = journal.read_bytes()
    # what a kill in the middle of a write leaves
    journal.write_bytes(whole + b"[0,[1,[0,0")
    rooms = Rooms()
    found = asyncio.run(recording(tmp_path, rooms).run())
    assert found.complete
    # a duplicate of a point that was in flight has no verdict yet
    assert found.new <= GRID - known + 4
    assert len(landscapes.read(tmp_path / "out.landscape").targets[0].points) == GRID


def test_an_interrupt_keeps_what_there_is(tmp_path):
    """Ctrl-C writes the landscape so far and ends the workers."""
    rooms = Rooms(stop=10)

    async def interrupted():
        rooms.behaviour["task"] = asyncio.current_task()
        await recording(tmp_path, rooms).run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted())
    assert rooms.closed == 1
    points = landscapes.read(tmp_path / "out.landscape").targets[0].points
    assert len(points) >= 9
    assert sum(p.verdict is Verdict.FASTER for p in points) == 9


def test_failures_of_ours_are_no_points(tmp_path):
    """One that fails through us is tried again, then left for the next time; many in a row end the recording."""
    lines = []
    found = asyncio.run(recording(tmp_path, Rooms(infra=lambda seen: seen[-1:] == seen[2:3]), say=lines.append).run())
    assert not found.complete
    assert found.points < GRID
    assert any("is left for later: The judge fell over." in line for line in lines)
    assert asyncio.run(recording(tmp_path, Rooms()).run()).complete
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(EnvironmentFault, match="The last 4 points failed for reasons outside the kernels: The judge"):
        asyncio.run(recording(other, Rooms(infra=lambda seen: len(seen) > 5)).run())
    assert landscapes.read(other / "out.landscape").targets[0].points


def test_other_recordings_are_left_alone(tmp_path):
    """Another model's file, another one's journal, a damaged one, and one that is being written are sentences."""
    asyncio.run(recording(tmp_path, Rooms(), limit=3).run())
    with pytest.raises(UsageError, match="is another recording"):
        asyncio.run(recording(tmp_path, Rooms(), seed=1).run())
    (tmp_path / "out.landscape").unlink()
    journal = tmp_path / "out.landscape.part"
    with pytest.raises(UsageError, match="was left by another recording"):
        asyncio.run(recording(tmp_path, Rooms(), seed=1).run())
    kept = journal.read_bytes()
    journal.write_bytes(b"nonsense\n")
    with pytest.raises(UsageError, match="is damaged"):
        asyncio.run(recording(tmp_path, Rooms()).run())
    journal.write_bytes(kept)
    import fcntl

    with journal.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="is being written by another recording"):
            asyncio.run(recording(tmp_path, Rooms()).run())


def test_what_cannot_be_recorded_is_said(tmp_path):
    """A target that cannot be judged, and one that nobody knows."""
    with pytest.raises(EnvironmentFault, match="Softmax cannot be judged: It draws random"):
        asyncio.run(recording(tmp_path, Rooms(usable=False)).run())
    assert not (tmp_path / "out.landscape").exists()
    with pytest.raises(UsageError, match="There is no target 'Norm'"):
        asyncio.run(recording(tmp_path, Rooms(), target_names=("Norm",)).run())
