"""The grid of a recording: at its defaults each source is the template's own kernel."""

import asyncio
import shutil

import msgspec
import pytest

from forge_tui.cli.commands.sim import packaged
from forge_tui.compiler.build import CommandCompiler
from forge_tui.core import landscapes
from forge_tui.core.records import Built
from forge_tui.proposers.templates.proposer import fits, write
from forge_tui.proposers.templates.wider import widened

LANDSCAPE = landscapes.read(packaged()["softmax-cpu"])
HOPPER = msgspec.structs.replace(LANDSCAPE.device, name="cuda:0", arch="sm_90a", sms=132, smem_optin=232448)


@pytest.mark.parametrize("device", [
    LANDSCAPE.device,
    pytest.param(HOPPER, marks=pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")),
], ids=["cpu", "cuda"])  # fmt: skip
def test_the_defaults_are_the_templates_own_kernel(device, tmp_path):
    """Machine code and launches are the same; at another setting they are not."""
    target = LANDSCAPE.targets[0].target
    compiler = CommandCompiler(device, tmp_path)
    own = write(target, device, fits(target, device).variants[0][0])
    wide = widened(own, device.language, 500)
    switch = {"LOOPS": 1} if device.kind == "cpu" else {"FAST": 1}

    async def build() -> list[Built]:
        made = [await compiler.build(target, source, tunables)
                for source, tunables in ((own, {}), (wide, {}), (wide, switch))]  # fmt: skip
        assert all(isinstance(one, Built) for one in made), made
        return made

    before, same, other = asyncio.run(build())
    assert (same.sha256, same.plan) == (before.sha256, before.plan)
    assert other.sha256 != before.sha256


def test_the_grid_stays_within_its_size():
    """Values go that are not the template's own; those stay whatever is asked for."""
    target = LANDSCAPE.targets[0].target
    own = write(target, HOPPER, fits(target, HOPPER).variants[1][0])
    least = widened(own, "cuda", 1)
    for line in own.splitlines():
        if line.startswith("//@tune"):
            assert line in least.splitlines()
    assert "//@tune FAST 0" in least.splitlines()
