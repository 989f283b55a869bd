"""Nsight Compute's table as counters and as lines for a prompt; each way in which there is none."""

from __future__ import annotations

import json
import sys

import pytest

from forge_tui.core.errors import EnvironmentFault
from forge_tui.core.records import Launch, LaunchPlan
from forge_tui.evaluator import ncu
from forge_tui.evaluator.job import Job

HEADS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
         "Device", "CC")  # fmt: skip
UNITS = {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte",
         "launch__registers_per_thread": "register/thread"}  # fmt: skip
VALUES = {
    "dram__bytes_read.sum": "268,435,456", "dram__bytes_write.sum": "134,217,728",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "71.52",
    "gpu__time_duration.sum": "81,504",
    "launch__occupancy_limit_blocks": "32", "launch__occupancy_limit_registers": "4",
    "launch__occupancy_limit_shared_mem": "9", "launch__occupancy_limit_warps": "8",
    "launch__registers_per_thread": "62", "launch__shared_mem_per_block_dynamic": "1024",
    "launch__shared_mem_per_block_static": "4,096", "launch__waves_per_multiprocessor": "7.75",
    "lts__t_sector_hit_rate.pct": "12.50", "lts__throughput.avg.pct_of_peak_sustained_elapsed": "40.10",
    "sm__maximum_warps_per_active_cycle_pct": "50", "sm__throughput.avg.pct_of_peak_sustained_elapsed": "23.81",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "44.31",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "3.25",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "18.75",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "1.5",
    "smsp__average_warps_issue_stalled_drain_per_issue_active.ratio": "0.01",
    "smsp__average_warps_issue_stalled_sleeping_per_issue_active.ratio": "0",
}  # fmt: skip
NOISE = """\
==PROF== Connected to process 4242 (/usr/bin/python3.11)
==PROF== Profiling "rows" - 0: 0%....50%....100% - 9 passes
buffers: {"x": 1}
==PROF== Disconnected from process 4242
"""


def table(*rows: tuple[str, dict[str, str]], noise: str = NOISE) -> str:
    """The raw page as comma-separated values: heads, units, a row a launch, every field quoted."""
    metrics = sorted(set().union(*(values for _, values in rows)) if rows else set())
    lines = [[*HEADS, *metrics], [*[""] * len(HEADS), *(UNITS.get(name, "") for name in metrics)]]
    for number, (kernel, values) in enumerate(rows):
        own = [str(number), "4242", "python3.11", "127.0.0.1", kernel, "1", "7", "(256, 1, 1)", "(2048, 1, 1)", "0",
               "9.0"]  # fmt: skip
        lines.append([*own, *(values.get(name, "") for name in metrics)])
    return noise + "\n".join(",".join(f'"{field}"' for field in line) for line in lines) + "\n"


def test_the_summary_of_a_kernel():
    """Rates, bytes, occupancy with its limit, what the compiler gave, and the three most frequent waits."""
    (found,) = ncu.parse(table(("rows(const float *, float *)", VALUES)), ["rows"])
    assert found.kernel == "rows"
    assert found.values["dram__bytes_read.sum"] == 268435456
    assert ncu.summary([found]) == """\
rows: 81.5 us under the profiler (caches flushed before it)
  of peak: SM 24%, DRAM 72%, L2 40%
  DRAM: 268.44 MB read, 134.22 MB written, 12% L2 hits
  occupancy: 44% of 50% possible, limited by registers
  62 registers a thread, 5120 bytes of shared memory a block, 7.75 waves
  warps wait, in cycles an instruction, for: global or local memory (long_scoreboard) 18.8; \
a barrier of the block (barrier) 3.2; a fixed latency (wait) 1.5"""


def test_many_launches_fit_fifteen_lines():
    """Those that take longest are shown, with their share; the rest is counted."""
    rows = [(f"k{i}(int)", VALUES | {"gpu__time_duration.sum": str(1000 * i)}) for i in range(1, 9)]
    found = ncu.parse(table(*rows), [f"k{i}" for i in range(1, 9)])
    lines = ncu.summary(found).splitlines()
    assert len(lines) <= ncu.MOST_LINES
    assert lines[0] == "k8: 8.0 us under the profiler (caches flushed before it), 22% of the time"
    assert lines[6].startswith("k7: 7.0 us")
    assert lines[-1] == "6 more launches."
    two = ncu.summary(found[:2]).splitlines()
    assert [line.split(":")[0] for line in two if not line.startswith(" ")] == ["k2", "k1"]


def test_fewer_metrics_make_fewer_lines():
    """A version that lacks some still tells the rest."""
    bare = {name: VALUES[name] for name in (
        "gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed", "sm__warps_active.avg.pct_of_peak_sustained_active",
    )}  # fmt: skip
    found = ncu.parse(table(("rows", bare | {"launch__registers_per_thread": "n/a"})), ["rows"])
    assert ncu.summary(found).splitlines()[1:] == ["  of peak: SM 24%, DRAM 72%", "  occupancy: 44%"]


@pytest.mark.parametrize(("stdout", "said"), [
    (("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
     "target device 0.\n"),
     ("The GPU's counters may not be read by this user (ERR_NVGPUCTRPERM): an administrator has to allow it in the "
     "driver's settings.")),
    ("==PROF== Connected to process 1\n==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n",
     "ncu counted nothing: Failed to initialize the profiler: LibraryNotLoaded."),
    ("==WARNING== No kernels were profiled.\n", "ncu counted nothing: No kernels were profiled."),
    ("", "ncu counted nothing."),
    (table(("other(int)", VALUES)), "ncu did not capture the kernel rows."),
    (table(("rows", VALUES | {"sm__throughput.avg.pct_of_peak_sustained_elapsed": "nan"})),
     ("ncu gave no number for sm__throughput.avg.pct_of_peak_sustained_elapsed of rows: this version may not know the "
     "GPU.")),
    (table(("rows", VALUES | {"gpu__time_duration.sum": ""})),
     "ncu gave no number for gpu__time_duration.sum of rows: this version may not know the GPU."),
])  # fmt: skip
def test_no_counters_is_one_sentence(stdout, said):
    """Forbidden, broken, nothing captured, another kernel, no finite number: never a summary of nothing."""
    with pytest.raises(EnvironmentFault) as caught:
        ncu.parse(stdout, ["rows"])
    assert caught.value.what == said


@pytest.fixture
def tool(tmp_path):
    """An ncu that prints what it is told and keeps its arguments."""
    path = tmp_path / "ncu"

    def make(stdout: str) -> str:
        path.write_text(f"#!{sys.executable} -ISs\nimport json, sys\n"
                        f"open({str(tmp_path / 'arguments')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
                        f"sys.stdout.write({stdout!r})\n")  # fmt: skip
        path.chmod(0o755)
        return str(path)

    make.arguments = lambda: json.loads((tmp_path / "arguments").read_text())
    return make


async def test_a_job_is_measured_by_the_kernels_it_launches(tool, tmp_path):
    """Exactly these kernels are captured, on one set, with the clocks left alone."""
    launches = [Launch(kernel=name, grid=(size, 1, 1), block=(32, 1, 1))
                for name, size in (("a", 1), ("b", 2), ("c", 0))]  # fmt: skip
    job = Job(image="k.cubin", plan=LaunchPlan(launches=tuple(launches)), device_index=0, inputs_path="in",
              input_names=[], input_bytes=[[]], output_names=[], output_bytes=[])  # fmt: skip
    path = tool(table(("a(int)", VALUES), ("b(int)", VALUES)))
    assert [c.kernel for c in await ncu.measure(job, tmp_path, path)] == ["a", "b"]
    asked = tool.arguments()
    assert asked[asked.index("--kernel-name") + 1] == "regex:^(a|b)$"
    assert asked[asked.index("--clock-control") + 1] == "none"
    assert asked[-2:] == [str(tmp_path / "job.json"), "1"]
    with pytest.raises(EnvironmentFault, match=r"^ncu was not found: it comes with the CUDA toolkit"):
        await ncu.measure(job, tmp_path, "")


async def test_whether_counters_can_be_read_is_tried(tool):
    """A small kernel is captured, or the sentence says why not."""
    assert await ncu.why_not(0, tool(table(("forge_probe", {"gpu__time_duration.sum": "2,016"})))) == ""
    assert tool.arguments()[-2:] == ["--probe", "0"]
    assert "ERR_NVGPUCTRPERM" in await ncu.why_not(0, tool("==ERROR== ERR_NVGPUCTRPERM - no\n"))
    assert await ncu.why_not(0, "") == "ncu was not found: it comes with the CUDA toolkit, as Nsight Compute."
    assert await ncu.why_not(0, "/nowhere/ncu") == "ncu cannot be started: No such file or directory."
