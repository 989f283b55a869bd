"""Rooms for recordings without torch and compilers, and a program that records with them until it is killed."""

import asyncio
import hashlib
import sys
from pathlib import Path

from forge_tui.cli.commands.sim import packaged
from forge_tui.core import landscapes
from forge_tui.core.paths import Workspace
from forge_tui.core.ports import TargetCheck
from forge_tui.core.profiles import Profile
from forge_tui.core.records import Built, CompileFailure, Evaluation, LaunchPlan, ModelSpec, RunOptions, Verdict
from forge_tui.engine import recording as engine_recording
from forge_tui.engine.recording import Recording

LANDSCAPE = landscapes.read(packaged()["softmax-cpu"])


class Rooms:
    """Evaluates by arithmetic; `behaviour` says what goes wrong."""

    def __init__(self, **behaviour):
        self.behaviour = behaviour
        self.evaluated = []
        self.opened = self.closed = 0
        self._sources = {}

    def check_tools(self):
        pass

    async def profile(self):
        targets = tuple(recorded.target for recorded in LANDSCAPE.targets)
        return Profile(device=LANDSCAPE.device, model_ms=1.0, overhead=1.0, hotspots=(), targets=targets)

    def compiler(self, device):
        return self

    def recorder(self, device, quiet):
        return self

    async def build(self, target, source, tunables):
        await asyncio.sleep(0)
        if tunables["LOOPS"] == 1:
            return CompileFailure(verdict=Verdict.COMPILE_ERROR, reason="No such option.")
        # the schedule makes no difference to the machine code
        code = hashlib.sha256(repr((source, {**tunables, "SCHEDULE": 0})).encode()).hexdigest()
        self._sources[code] = (source, tunables)
        return Built(path="", sha256=code, language="cpp", plan=LaunchPlan(), compile_s=0.1)

    async def open(self, target):
        self.opened += 1
        return TargetCheck(usable=self.behaviour.get("usable", True), reason="It draws random numbers.", eager_us=50.0)

    async def evaluate(self, target, built, seed):
        await asyncio.sleep(self.behaviour.get("seconds", 0))
        self.evaluated.append(built.sha256)
        if self.behaviour.get("infra", lambda seen: False)(self.evaluated):
            return Evaluation(verdict=Verdict.INFRA, reason="The judge fell over.")
        if self.behaviour.get("stop") == len(self.evaluated):
            self.behaviour["task"].cancel()
            await asyncio.sleep(10)
        us = 20.0 + int(built.sha256[:2], 16) / 10
        return Evaluation(verdict=Verdict.FASTER, samples=((us, 50.0), (us * 1.01, 51.0)) * 7, sha256=built.sha256)

    async def close(self):
        self.closed += 1


def recording(folder: Path, rooms: Rooms, limit: int | None = None, say=lambda _: None, **options) -> Recording:
    """A recording of the softmax into `out.landscape` of a folder."""
    engine_recording.MOST_POINTS = 120
    place = Workspace(folder / "ws")
    asked = RunOptions(model=ModelSpec(text="/some/where/m.py:f", path="/some/where/m.py", content_hash="x"),
                       device="cpu", workspace=str(place.root), **options)  # fmt: skip
    return Recording(rooms, asked, place, folder / "out.landscape", say, limit=limit)


if __name__ == "__main__":
    asyncio.run(recording(Path(sys.argv[1]), Rooms(seconds=0.01)).run())
