"""Which winners stay: decided on a simulated model, where the truth is known."""

import math
import random

import pytest

from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError, ModelError, WorkerDied
from forge_tui.core.records import Built, LaunchPlan, Signature, Target, Winner
from forge_tui.deploy.gate import Gate
from forge_tui.deploy.messages import Check, Comparison, CompileResult, Difference, HostTimes, Prepared, Served
from forge_tui.deploy.stats import speedup


def winner(name):
    """A winner that nothing looks into."""
    signature = Signature(inputs=(), outputs=(), scalars=(), call={}, result={})
    target = Target(id=name, name=name, kind="module", qualname=name, instances=(name,), signature=signature, calls=1,
                    time_us=1, share=0.1, floor_us=1, bound="memory", headroom_ms=1, bytes_moved=1, flops=1)
    built = Built(path="", sha256="", language="cpp", plan=LaunchPlan(), compile_s=0)
    return Winner(target=target, node_id=len(name), built=built)


class SimulatedBench:
    """A model of 100 ms; each kernel saves some of it, costs some error, or does something worse."""

    def __init__(self, kernels, *, inside=(), noise=0.002, crash_together=(), compile_ms=50.0, seconds=1e9,
                 compare_s=0.0):
        self.compare_s = compare_s
        self.kernels = kernels  # name -> dict(saves, error, calls, crash, load, fault, reasons)
        self.names = list(kernels)
        self.inside = dict(inside)  # inner -> outer: the outer hides all calls of the inner
        self.noise = noise
        self.crash_together = set(crash_together)
        self.compile_ms = compile_ms
        self.random = random.Random(1)
        self.starts = 0
        self.alive = False
        self.seconds = seconds
        self.compares = []

    def remaining_s(self):
        return self.seconds

    async def prepare(self):
        if not self.alive:
            self.starts += 1
            self.alive = True
        return Prepared(model_ms=100.0, tolerance="1e-6")

    def _die(self, what):
        self.alive = False
        raise WorkerDied(what, signal=11)

    def _active(self, indices):
        names = [self.names[i] for i in indices]
        return [n for n in names if self.inside.get(n) not in names]

    def _ms(self, indices):
        return 100.0 - sum(self.kernels[n].get("saves", 0.0) for n in self._active(indices))

    async def check(self, indices):
        await self.prepare()
        names = [self.names[i] for i in indices]
        for name in names:
            if self.kernels[name].get("crash"):
                self._die("The worker ended with signal SIGSEGV.")
            if self.kernels[name].get("load"):
                raise EnvironmentFault("The driver is too old.")
        if self.crash_together and self.crash_together <= set(names):
            self._die("The worker ended with signal SIGABRT.")
        active = self._active(indices)
        error = sum(self.kernels[n].get("error", 0.0) for n in active)
        served = []
        for name in names:
            facts = self.kernels[name]
            calls = facts.get("calls", 4) if name in active else 0
            reasons = facts.get("reasons", {})
            served.append(Served(calls=calls, fallbacks=sum(reasons.values()), reasons=reasons,
                                 fault=facts.get("fault", "")))
        why = "" if error <= 1.0 else f"output differs by {error}"
        gap = Difference(max_abs=error, rms=error / 2, within=not why, why=why)
        return Check(difference=gap, served=served)

    async def compare(self, first, second, budget_s):
        await self.prepare()
        self.compares.append((list(first), list(second)))
        self.seconds -= self.compare_s
        samples = [tuple(self._ms(s) * self.random.gauss(1.0, self.noise) for s in (first, second)) for _ in range(12)]
        mid, low, high = speedup(samples)
        return Comparison(speedup=mid, ci=(low, high), samples=samples)

    async def host(self, index):
        return HostTimes(guarded_us=9.0, original_us=20.0)

    async def compiled(self, budget_s):
        if self.compile_ms is None:
            return CompileResult(comparison=None, failure="Not ready within 60 s.")
        ratio = 100.0 / self.compile_ms
        comparison = Comparison(speedup=ratio, ci=(ratio, ratio), samples=[(self.compile_ms, 100.0)])
        return CompileResult(comparison=comparison)


async def decide(bench, compile_baseline=False):
    """The deployment, and what was said."""
    said = []
    gate = Gate(bench, [winner(n) for n in bench.names], lambda text, decision: said.append((text, decision)))
    deployment = await gate.run(compile_baseline=compile_baseline)
    return deployment, {d.target_id: d for d in deployment.decisions}, said


async def test_kernels_that_help_stay_and_the_speedup_is_that_of_the_whole_model():
    """Two kernels save 20 and 10 of 100 ms: 100 / 70."""
    deployment, by, said = await decide(SimulatedBench({"A": {"saves": 20}, "B": {"saves": 10}}))
    assert by["A"].deployed
    assert by["B"].deployed
    assert deployment.speedup == pytest.approx(100 / 70, rel=0.01)
    assert deployment.speedup_ci[0] > 1.4
    assert deployment.deployed_ms == pytest.approx(70, rel=0.01)
    assert by["A"].alone_speedup == pytest.approx(100 / 80, rel=0.01)
    assert (by["A"].calls, by["A"].host_us, by["A"].host_us_original) == (4, 9.0, 20.0)
    assert [d.target_id for _, d in said if d] == ["A", "B"]


async def test_a_kernel_that_gains_nothing_is_taken_out_with_the_interval():
    """Its removal does not slow the model, so it goes, and the reason has the figures."""
    deployment, by, _ = await decide(SimulatedBench({"A": {"saves": 20}, "B": {"saves": 0.0}}))
    assert by["A"].deployed
    assert not by["B"].deployed
    assert by["B"].why_not.startswith("inside the model it gains nothing: ")
    assert "x, interval 0.9" in by["B"].why_not
    assert deployment.speedup == pytest.approx(1.25, rel=0.01)


async def test_a_slower_kernel_is_out_before_the_combination():
    """Alone it costs 5 ms: it is never measured beside others."""
    bench = SimulatedBench({"A": {"saves": 20}, "B": {"saves": -5}})
    _, by, _ = await decide(bench)
    assert by["B"].why_not.startswith("inside the model it is slower: 0.95")
    assert not any(1 in first and len(first) > 1 for first, _ in bench.compares)


async def test_without_survivors_the_original_is_measured_as_such():
    """No kernel: speedup 1, no error, and every reason is there."""
    deployment, by, said = await decide(SimulatedBench({"A": {"saves": -5}, "B": {"saves": 0}}))
    assert not by["A"].deployed
    assert not by["B"].deployed
    assert (deployment.speedup, deployment.speedup_ci) == (1.0, (1.0, 1.0))
    assert deployment.deployed_ms == deployment.baseline_ms > 0
    assert deployment.max_abs_error == 0
    assert any("the model is the original" in text for text, _ in said)


async def test_no_winners_at_all():
    """An empty list is measured and says so."""
    deployment, by, _ = await decide(SimulatedBench({}))
    assert by == {}
    assert deployment.speedup == pytest.approx(1.0, abs=0.01)


async def test_a_crash_costs_one_kernel():
    """The worker is started again, and the other kernel is deployed."""
    bench = SimulatedBench({"A": {"crash": True}, "B": {"saves": 10}})
    _, by, _ = await decide(bench)
    assert by["A"].why_not == "inside the model it ended the process: the worker ended with signal SIGSEGV"
    assert by["B"].deployed
    assert bench.starts == 2


async def test_a_kernel_that_cannot_be_loaded_is_out_with_the_sentence():
    """A fault of loading is no crash."""
    _, by, _ = await decide(SimulatedBench({"A": {"load": True}, "B": {"saves": 10}}))
    assert by["A"].why_not == "it could not be put in: the driver is too old"
    assert by["B"].deployed


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"calls": 0, "reasons": {"shape": 3, "strides": 1}},
         "it served no call inside the model: 4 given back (3 for shape, 1 for strides)"),
        ({"calls": 0}, "no call of the model reached it"),
        ({"error": 5.0}, "with this kernel alone output differs by 5.0"),
        ({"fault": "LaunchError: forge_launch returned 3; 0 means success."},
         "a launch inside the model failed: LaunchError: forge_launch returned 3; 0 means success"),
    ],
)  # fmt: skip
async def test_a_kernel_that_does_not_work_inside_is_out_with_the_reason(facts, reason):
    """Unserved, wrong and failing kernels are told apart."""
    _, by, _ = await decide(SimulatedBench({"A": {"saves": 10} | facts}))
    assert not by["A"].deployed
    assert by["A"].why_not == reason


async def test_a_combination_that_breaks_the_outputs_is_bisected():
    """Each is right alone; together the errors add up, and the least useful one that breaks it goes."""
    bench = SimulatedBench({"A": {"saves": 20, "error": 0.4}, "B": {"saves": 5, "error": 0.4},
                            "C": {"saves": 10, "error": 0.4}, "D": {"saves": 3, "error": 0.05}})
    deployment, by, _ = await decide(bench)
    assert [n for n in "ABCD" if by[n].deployed] == ["A", "C", "D"]
    assert by["B"].why_not.startswith("together with the other kernels output differs by 1.2")
    assert deployment.within_tolerance
    assert deployment.max_abs_error == pytest.approx(0.85)


async def test_two_kernels_that_crash_together_lose_one():
    """The pair ends the process; the better one stays."""
    bench = SimulatedBench({"A": {"saves": 20}, "B": {"saves": 5}, "C": {"saves": 8}}, crash_together={"A", "B"})
    _, by, _ = await decide(bench)
    assert [n for n in "ABC" if by[n].deployed] == ["A", "C"]
    assert "ended the process: the worker ended with signal SIGABRT" in by["B"].why_not


@pytest.mark.parametrize(("outer", "inner", "stays"), [(5, 20, "inner"), (20, 5, "outer")])
async def test_of_overlapping_targets_the_better_combination_stays(outer, inner, stays):
    """A layer and its norm: while the layer's kernel serves, the norm's is never called."""
    kernels = {"outer": {"saves": outer}, "inner": {"saves": inner}}
    deployment, by, _ = await decide(SimulatedBench(kernels, inside={"inner": "outer"}))
    assert [n for n in by if by[n].deployed] == [stays]
    assert deployment.speedup == pytest.approx(100 / 80, rel=0.01)
    if stays == "outer":
        assert by["inner"].why_not.endswith("4 of its 4 calls lie inside those of outer")


async def test_two_inner_kernels_can_beat_the_outer_one():
    """8 + 9 inside the layer against 12 for the layer as a whole."""
    kernels = {"layer": {"saves": 12}, "norm": {"saves": 8}, "act": {"saves": 9}}
    _, by, _ = await decide(SimulatedBench(kernels, inside={"norm": "layer", "act": "layer"}))
    assert [n for n in by if by[n].deployed] == ["norm", "act"]


async def test_losers_that_overlap_nothing_go_together():
    """One overlapping pair does not make every other kernel be measured again."""
    kernels = {"outer": {"saves": 20}, "inner": {"saves": 5}, "X": {"saves": 0}, "Y": {"saves": 0}, "Z": {"saves": 5}}
    bench = SimulatedBench(kernels, inside={"inner": "outer"})
    _, by, _ = await decide(bench)
    assert [n for n in by if by[n].deployed] == ["outer", "Z"]
    assert by["inner"].why_not == "inside the model it gains nothing; 4 of its 4 calls lie inside those of outer"
    assert len(bench.compares) == 5 + 4 + 1


async def test_without_time_nothing_untried_is_deployed():
    """What could not be measured stays out, with the reason."""
    deployment, by, _ = await decide(SimulatedBench({"A": {"saves": 20}}, seconds=1.0))
    assert by["A"].why_not == "there was no time left to try it inside the model"
    assert deployment.speedup == pytest.approx(1.0, abs=0.01)


async def test_what_was_proven_before_the_time_ran_out_stays():
    """Two are measured beside the others, then the time is over: the third stays out."""
    kernels = {"A": {"saves": 20}, "B": {"saves": 15}, "C": {"saves": 10}}
    bench = SimulatedBench(kernels, seconds=92.0, compare_s=15.0)
    _, by, _ = await decide(bench)
    assert [n for n in "ABC" if by[n].deployed] == ["A", "B"]
    assert by["C"].why_not == "there was no time left to see whether it helps inside the model"


async def test_a_cuda_error_is_told_apart_from_a_kernel_that_cannot_be_loaded():
    """What is no known fault came from running it."""
    bench = SimulatedBench({"A": {"saves": 20}})
    plain = bench.check

    async def check(indices):
        if indices:
            raise ForgeError("AcceleratorError: CUDA error: an illegal memory access was encountered.",
                             exit_code=ExitCode.BUG)
        return await plain(indices)

    bench.check = check
    _, by, _ = await decide(bench)
    assert by["A"].why_not == (
        "inside the model it failed: AcceleratorError: CUDA error: an illegal memory access was encountered")


async def test_each_kernel_is_timed_no_more_often_than_needed():
    """Four that help and do not overlap: four alone, four beside the others, one at the end."""
    bench = SimulatedBench({n: {"saves": 10} for n in "ABCD"})
    _, by, _ = await decide(bench)
    assert all(by[n].deployed for n in "ABCD")
    assert len(bench.compares) == 9


async def test_the_compile_baseline_is_scaled_to_this_runs_eager_time():
    """Its ratio was measured in turns with eager: 100 ms over 2."""
    deployment, _, _ = await decide(SimulatedBench({"A": {"saves": 20}}), compile_baseline=True)
    assert deployment.baselines_ms["compile"] == pytest.approx(deployment.baseline_ms / 2)
    assert deployment.baseline_failures == {}


async def test_a_compile_that_hangs_is_a_recorded_reason():
    """The deployment stands without it."""
    deployment, by, _ = await decide(SimulatedBench({"A": {"saves": 20}}, compile_ms=None), compile_baseline=True)
    assert deployment.baseline_failures == {"compile": "Not ready within 60 s."}
    assert deployment.baselines_ms == {}
    assert by["A"].deployed


async def test_a_model_that_cannot_be_loaded_is_an_error():
    """There is nothing to decide then."""
    bench = SimulatedBench({"A": {"saves": 20}})

    async def prepare():
        raise ModelError("build() failed.")

    bench.prepare = prepare
    with pytest.raises(ModelError, match=r"build\(\) failed"):
        await decide(bench)


async def test_outputs_that_cannot_be_compared_deploy_nothing():
    """A model that returns no tensor gives no proof that a kernel is right."""
    bench = SimulatedBench({"A": {"saves": 20}})

    async def prepare():
        return Prepared(model_ms=100.0, tolerance="", incomparable="the model call returns no tensor")

    bench.prepare = prepare
    _, by, _ = await decide(bench)
    assert by["A"].why_not == "its results cannot be checked inside the model: the model call returns no tensor"


async def test_an_infinite_difference_of_the_original_survives_json():
    """The record can be stored and read again."""
    import msgspec

    from forge_tui.core.records import Deployment

    bench = SimulatedBench({})

    async def check(indices):
        return Check(difference=Difference(max_abs=math.inf, rms=math.inf, within=False, why="other structure"),
                     served=[])

    bench.check = check
    deployment, _, _ = await decide(bench)
    again = msgspec.json.decode(deployment.to_json(), type=Deployment)
    assert again == deployment
    assert not again.within_tolerance


def test_the_interval_covers_the_truth_and_is_repeatable():
    """95 of 100 intervals hold the true ratio, at least 85 in any sane draw; equal samples give equal intervals."""
    chooser = random.Random(3)
    hits = 0
    for _ in range(60):
        pairs = [(chooser.gauss(10, 0.2), chooser.gauss(11, 0.2)) for _ in range(16)]
        mid, low, high = speedup(pairs)
        assert low <= mid <= high
        hits += low <= 1.1 <= high
    assert hits >= 51
    assert speedup(pairs) == speedup(pairs)


def test_one_sample_proves_nothing():
    """The interval of one pair is everything."""
    assert speedup([(1.0, 2.0)]) == (2.0, 0.0, math.inf)
    with pytest.raises(ValueError, match="no samples"):
        speedup([])
