"""Compilers and timings on the same cores."""

import asyncio

from forge_tui.processes.quiet import Quiet


async def _hold(manager, name, log, release):
    async with manager:
        log.append(f"+{name}")
        await release.wait()
    log.append(f"-{name}")


async def test_compiles_run_side_by_side_and_a_timing_waits_for_all_of_them():
    """Two compiles are inside together; the timing enters only when both have left."""
    quiet, log, release = Quiet(exclusive=True), [], asyncio.Event()
    tasks = [asyncio.create_task(_hold(quiet.compiling(), f"c{i}", log, release)) for i in range(2)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(_hold(quiet.timing(), "t", log, release)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert log == ["+c0", "+c1"]
    release.set()
    await asyncio.gather(*tasks)
    assert log[-2:] == ["+t", "-t"]


async def test_a_waiting_timing_goes_before_a_later_compile():
    """A compile that comes after a waiting timing does not overtake it, so that timings never starve."""
    quiet, log = Quiet(exclusive=True), []
    first, go = asyncio.Event(), asyncio.Event()
    go.set()
    tasks = [asyncio.create_task(_hold(quiet.compiling(), "c0", log, first))]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(_hold(quiet.timing(), "t", log, go)))
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(_hold(quiet.compiling(), "c1", log, go)))
    await asyncio.sleep(0)
    first.set()
    await asyncio.gather(*tasks)
    assert [entry for entry in log if entry[0] == "+"] == ["+c0", "+t", "+c1"]


async def test_a_cancelled_wait_leaves_no_trace():
    """A timing that is cancelled while it waits does not block later compiles."""
    quiet, log, release = Quiet(exclusive=True), [], asyncio.Event()
    compile_task = asyncio.create_task(_hold(quiet.compiling(), "c0", log, release))
    await asyncio.sleep(0)
    timing = asyncio.create_task(_hold(quiet.timing(), "t", log, release))
    await asyncio.sleep(0)
    timing.cancel()
    release.set()
    await asyncio.gather(compile_task, timing, return_exceptions=True)
    async with asyncio.timeout(1):
        await _hold(quiet.compiling(), "c1", log, release)
    assert log == ["+c0", "-c0", "+c1", "-c1"]


async def test_on_a_gpu_nothing_waits():
    """Compilers use the host and timings the GPU, so both are inside at once."""
    quiet, log, release = Quiet(exclusive=False), [], asyncio.Event()
    managers = {"t": quiet.timing(), "c": quiet.compiling()}
    tasks = [asyncio.create_task(_hold(manager, name, log, release)) for name, manager in managers.items()]
    await asyncio.sleep(0)
    assert log == ["+t", "+c"]
    release.set()
    await asyncio.gather(*tasks)
