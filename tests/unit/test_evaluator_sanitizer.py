"""compute-sanitizer: what it writes as sentences, and what is made of each way it can end."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from forge_tui.core.records import LaunchPlan
from forge_tui.evaluator import alone
from forge_tui.evaluator.job import Job
from forge_tui.evaluator.sanitizer import TOOLS, ComputeSanitizer
from forge_tui.evaluator.sanitizer_log import parse, sentence

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at rows(const float *, const float *, float *, void *, ForgeDims)+0x70 in candidate.cu:7
=========     by thread (31,0,0) in block (4,0,0)
=========     Access at 0x503600080 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x503600000 of size 128 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at rows(const float *, const float *, float *, void *, ForgeDims)+0x70 in candidate.cu:7
=========     by thread (30,0,0) in block (4,0,0)
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call to cuCtxSynchronize.
=========
========= ERROR SUMMARY: 3 errors
"""  # noqa: E501
OLD = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 8 bytes
=========     at 0x578 in /tmp/x/candidate.cu:120:tile
=========     by thread (0,3,0) in block (0,0,0)
=========     Address 0x21 is misaligned
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x123456] in libcuda.so
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sums(const float *, float *)+0x430 in candidate.cu:46
=========     and Read access at sums(const float *, float *)+0x770 in candidate.cu:55 [248 hazards]
=========     and Read access at sums(const float *, float *)+0x7a0 in candidate.cu:55 [248 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INIT = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at total(float *)+0x70
=========     by thread (98,0,0) in block (194,0,0)
=========     Address 0x7fbbca800010
=========
========= ERROR SUMMARY: 200 errors
"""
SYNC = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at half(int *)+0xb0 in candidate.cu:20
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
PROBE = f"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at {alone.PROBE_KERNEL}+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f0000000040 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(("log", "errors", "said"), [
    (MEMCHECK, 3, ("invalid global write of 4 bytes in rows, line 7 by thread (31,0,0) of block (4,0,0), "
                  "1 bytes after out0 (128 bytes).")),
    (OLD, 1, ("invalid shared read of 8 bytes in tile, line 120 by thread (0,3,0) of block (0,0,0), "
             "address 0x21, which is misaligned.")),
    (RACE, 1, ("a race in shared memory between a write in sums, line 46 and a read in sums, line 55, 248 times: "
              "is a barrier missing?")),
    (INIT, 200, ("uninitialized global memory read of 4 bytes in total at 0x70 by thread (98,0,0) of block (194,0,0), "
                "16 bytes into workspace.")),
    (SYNC, 1, ("barrier error detected. Divergent thread(s) in block in half, line 20 by thread (32,0,0) of block "
              "(0,0,0).")),
])  # fmt: skip
def test_the_first_report_becomes_a_sentence(log, errors, said):
    """Kind, kernel, line, thread, and which buffer the address belongs to."""
    found = parse(log)
    assert found.errors == errors
    assert sentence(found.found, {"out0": 0x503600000, "workspace": 0x7FBBCA800000}) == said


def test_calls_that_fail_are_no_finding():
    """What the API says, or the tool of itself, is not the kernel's; a log that breaks off has no count."""
    failed = """\
========= COMPUTE-SANITIZER
========= Program hit CUDA_ERROR_OUT_OF_MEMORY (error 2) due to "out of memory" on CUDA API call to cuMemAlloc_v2.
=========
========= ERROR SUMMARY: 1 error
"""
    found = parse(failed)
    assert (found.found, found.errors, len(found.reports)) == (None, 1, 1)
    assert parse("========= COMPUTE-SANITIZER\n").errors is None
    assert parse("stray output\n").reports == []
    warned = parse("========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)\n")
    assert warned.errors == 0


FAKE = f"#!{sys.executable} -ISs\n" + """\
import json, os, sys, time
arguments = sys.argv[1:]
where = os.path.dirname(os.path.abspath(__file__))
plan = json.load(open(os.path.join(where, "plan.json")))
tool = arguments[arguments.index("--tool") + 1]
probe = "--probe" in arguments
with open(os.path.join(where, "calls"), "a") as calls:
    calls.write(json.dumps([tool, probe, arguments]) + "\\n")
step = plan["probe"] if probe else plan.get(tool, {"log": plan["clean"]})
if step.get("refuses", "none") in arguments:
    sys.exit("unrecognised option " + step["refuses"])
time.sleep(step.get("sleep", 0))
sys.stderr.write(step.get("stderr", ""))
print("buffers: " + json.dumps(plan["buffers"]))
if "log" in step:
    open(arguments[arguments.index("--log-file") + 1], "w").write(step["log"])
sys.exit(step.get("code", 0))
"""


@pytest.fixture
def sanitizer(tmp_path):
    """Makes a sanitizer whose tool is a script that does what it is told; `calls` are what it was asked."""
    folder = tmp_path / "tool"
    folder.mkdir()
    script = folder / "compute-sanitizer"
    script.write_text(FAKE)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def make(tool_s=30.0, **plan):
        told = {"probe": {"log": PROBE, "code": 86}, "clean": CLEAN, "buffers": {"out0": 0x503600000}} | plan
        (folder / "plan.json").write_text(json.dumps(told))
        return ComputeSanitizer(1, str(script), tool_s)

    make.calls = lambda: [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    return make


@pytest.fixture
def job(tmp_path):
    """A job with two sets, and a folder to run it in."""
    return Job(image="k.cubin", plan=LaunchPlan(), device_index=1, inputs_path="in", input_names=["x"],
               input_bytes=[[4], [4]], output_names=["out0"], output_bytes=[4]), tmp_path  # fmt: skip


async def test_every_pass_is_made_and_the_probe_once(sanitizer, job):
    """A clean kernel passes all four; the machine is tried once, the race checker gets one set of inputs."""
    made = sanitizer()
    for _ in range(2):
        found = await made.run(*[job[0], "", job[1]])
        assert (found.passed, found.missing, found.found) == (TOOLS, "", "")
    calls = sanitizer.calls()
    assert [(tool, probe) for tool, probe, _ in calls] == [("memcheck", True), *[(t, False) for t in TOOLS * 2]]
    assert calls[0][2][-3:] == [alone.__name__, "--probe", "1"]
    assert [arguments[-1] for _, probe, arguments in calls[1:5] if not probe] == ["2", "1", "2", "2"]
    assert "--padding" in calls[1][2]
    assert "--padding" not in calls[2][2]
    assert json.loads((job[1] / "job.json").read_text())["device_index"] == 1


async def test_a_finding_ends_it_with_the_buffer_named(sanitizer, job):
    """The first tool that finds something is the last, and its sentence is the reason."""
    found = await sanitizer(memcheck={"log": MEMCHECK, "code": 86}).run(job[0], "", job[1])
    assert found.found == (
        "compute-sanitizer memcheck: invalid global write of 4 bytes in rows, line 7 by thread (31,0,0) of block "
        "(4,0,0), 1 bytes after out0 (128 bytes)."
    )
    assert found.passed == ()
    assert "Access at 0x503600080" in found.log
    assert len(sanitizer.calls()) == 2
    race = await sanitizer(racecheck={"log": RACE, "code": 86}).run(job[0], "__syncthreads();", job[1])
    assert (race.passed, race.found.split(":")[0]) == (("memcheck",), "compute-sanitizer racecheck")


async def test_reports_on_asynchronous_copies_are_told_and_not_held_against_it(sanitizer, job):
    """Race and initialisation checks do not follow such copies; the word in a comment changes nothing."""
    made = sanitizer(racecheck={"log": RACE, "code": 86}, memcheck={"log": CLEAN})
    found = await made.run(job[0], 'asm volatile("mbarrier.init.shared.b64");', job[1])
    assert found.found == ""
    assert found.passed == ("memcheck", "initcheck", "synccheck")
    assert found.missing.startswith("Racecheck does not follow asynchronous copies, so its report is not held against")
    assert "in sums, line 46" in found.missing
    assert (await made.run(job[0], "// mbarrier\n/* wgmma */ int x;", job[1])).found


@pytest.mark.parametrize(("step", "why"), [
    ({"sleep": 30}, "did not end within 1 s"),
    ({"log": "========= COMPUTE-SANITIZER\n", "code": 3, "stderr": "There is no CUDA driver (libcuda.so.1) here.\n"},
     "failed (There is no CUDA driver (libcuda.so.1) here)"),
    ({"log": "========= COMPUTE-SANITIZER\n========= Error: Internal error\n", "code": 1}, "failed (Internal error)"),
    ({"log": CLEAN, "code": 9}, "ended with code 9"),
    ({"log": "========= COMPUTE-SANITIZER\n"}, "found nothing"),
])  # fmt: skip
async def test_a_pass_that_cannot_be_made_is_missing(sanitizer, job, step, why):
    """It is no fault of the kernel, and the other passes are made."""
    made = sanitizer(tool_s=1.0 if "sleep" in step else 30.0, initcheck=step)
    found = await made.run(job[0], "", job[1])
    assert found.found == ""
    assert found.missing == f"Initcheck {why}."
    assert found.passed == ("memcheck", "racecheck", "synccheck")


async def test_a_machine_on_which_it_does_not_work(sanitizer, job, tmp_path):
    """Missing, forbidden, blind or unable: one sentence says which, and kernels are not run under it."""
    refused = "========= COMPUTE-SANITIZER\n========= Error: Device not supported. Please refer to the documentation.\n"
    for plan, why in (
        ({"log": refused, "code": 1}, "failed (Device not supported. Please refer to the documentation)"),
        ({"log": CLEAN}, "found nothing"),
        ({"stderr": "ptrace: Operation not permitted\n", "code": 255}, "failed (ptrace: Operation not permitted)"),
    ):
        found = await sanitizer(probe=plan).run(job[0], "", job[1])
        assert found.missing == (
            f"compute-sanitizer does not work here: on a kernel that writes out of bounds it {why}."
        )
        assert found.passed == ()
    assert all(probe for _, probe, _ in sanitizer.calls())
    absent = await ComputeSanitizer(0, "").run(job[0], "", job[1])
    assert absent.missing == "compute-sanitizer was not found: it comes with the CUDA toolkit."
    broken = await ComputeSanitizer(0, os.fspath(tmp_path / "nothing")).run(job[0], "", job[1])
    assert broken.missing == "compute-sanitizer cannot be started: No such file or directory."


async def test_a_version_without_padding_is_used_without_it(sanitizer, job):
    """An older tool that does not know the option is asked again, once."""
    made = sanitizer(probe={"log": PROBE, "code": 86, "refuses": "--padding"})
    assert (await made.run(job[0], "", job[1])).passed == TOOLS
    calls = sanitizer.calls()
    assert [probe for _, probe, _ in calls[:3]] == [True, True, False]
    assert all("--padding" not in arguments for _, _, arguments in calls[1:])


def test_tools_are_found_in_toolkits(tmp_path, monkeypatch):
    """PATH first, then the chosen toolkit; what cannot be run is passed over."""
    from forge_tui.processes import cuda_tools

    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    folder = tmp_path / "cuda" / "bin"
    folder.mkdir(parents=True)
    (folder / "ncu-of-this-test").write_text("")
    assert cuda_tools.find("ncu-of-this-test") == ""
    (folder / "ncu-of-this-test").chmod(0o755)
    assert cuda_tools.find("ncu-of-this-test") == str(folder / "ncu-of-this-test")
    assert Path(cuda_tools.find("ncu-of-this-test")).is_file()
