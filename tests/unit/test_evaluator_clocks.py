"""The second clock's rules, verdicts with several baselines, when the original is compiled."""

from __future__ import annotations

import asyncio

import pytest
from targets_fixture import cpu_device, cuda_device, softmax_target

from forge_tui.core.errors import WorkerDied
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Launch, LaunchPlan, Verdict
from forge_tui.core.timings import Noise
from forge_tui.evaluator import second_clock
from forge_tui.evaluator.compiled_baseline import UNASKED, UNWANTED, CompiledBaseline
from forge_tui.evaluator.conclude import conclude
from forge_tui.evaluator.second_clock import Seen

PLAN = LaunchPlan(
    launches=(
        Launch(kernel="partial", grid=(4, 1, 1), block=(32, 1, 1)),
        Launch(kernel="skipped", grid=(0, 1, 1), block=(32, 1, 1)),
        Launch(kernel="finish", grid=(4, 1, 1), block=(32, 1, 1)),
    ),
    workspace_bytes=64, workspace_zero=True,
)  # fmt: skip
MARK = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1>>"


def run_of(*names: str, calls: int = 3, each_us: int = 10) -> list[Seen]:
    """What a tracer sees of calls that launch these, one after the other."""
    order = [name for _ in range(calls) for name in names]
    return [Seen(name, i * each_us * 1000, (i + 1) * each_us * 1000) for i, name in enumerate(order)]


HONEST = run_of("Memset (Device)", "partial", "finish")


def test_what_the_plan_says_is_all_that_may_run():
    """Its kernels, as often as planned, and the zeroing of its workspace; a skipped launch is not expected."""
    assert second_clock.odd(PLAN, 3, HONEST, 95.0) == ""


@pytest.mark.parametrize(("seen", "reason"), [
    ([*HONEST, Seen("void cublas::gemm<float>", 90_000, 91_000)], "ran void cublas::gemm<float>, which is not one"),
    ([*HONEST, Seen("partial", 90_000, 91_000)], "ran partial 1 times more than the plan says"),
    ([*HONEST, Seen("Memset (Device)", 90_000, 91_000)], "set memory more often"),
    ([*HONEST, Seen("Memcpy DtoD (Device -> Device)", 90_000, 91_000)], "which is not one of its kernels"),
    (HONEST[:-1], "ran finish 2 times instead of 3"),
    ([], "ran partial 0 times instead of 3"),
    (run_of("Memset (Device)", "partial", "finish", each_us=100), "was busy for 900 us in 3 calls"),
])  # fmt: skip
def test_anything_else_is_told(seen, reason):
    """Other kernels, more or fewer of its own, and time that the events did not see."""
    assert reason in second_clock.odd(PLAN, 3, seen, 95.0)


def test_work_on_two_streams_at_once_counts_once():
    """Overlapping kernels are busy time once, gaps are none."""
    assert second_clock.busy_us([Seen("a", 0, 5000), Seen("b", 2000, 7000), Seen("c", 9000, 10_000)]) == 8.0


def test_a_trace_counts_only_between_its_marks():
    """The two marks are taken out; without both the tracer does not work, which is no fault of the candidate."""
    marks = [Seen(MARK, -5, -1), Seen(MARK, 10**6, 10**6 + 1)]
    assert second_clock.between_marks([marks[1], *HONEST, marks[0]]) == HONEST
    assert second_clock.between_marks(HONEST) is None
    assert second_clock.between_marks([marks[0], *HONEST]) is None


def test_a_trace_holds_nothing_of_before_its_marks():
    """Marks and work that an earlier trace left over are not of these calls; work behind the second mark is."""
    marks = [Seen(MARK, -5, -1), Seen(MARK, 10**6, 10**6 + 1)]
    stale = [Seen(MARK, -900, -890), Seen("rows", -800, -700), Seen(MARK, -600, -590)]
    behind = Seen("late", 10**6 + 5, 10**6 + 9)
    assert second_clock.between_marks([*stale, *marks, *HONEST, behind]) == [*HONEST, behind]


def test_names_of_an_earlier_kernel_are_told_from_other_work():
    """As often as planned under another name is all but the name; once more, or less, is not."""
    other = [Seen(item.name.replace("partial", "rows"), item.start, item.end) for item in HONEST]
    assert "ran rows, which is not one of its kernels" in second_clock.odd(PLAN, 3, other, 1000.0)
    assert second_clock.only_names(PLAN, 3, other)
    assert not second_clock.only_names(PLAN, 3, HONEST)
    assert not second_clock.only_names(PLAN, 3, [*other, Seen("rows", 5, 6)])
    assert not second_clock.only_names(PLAN, 3, [*HONEST, Seen("rows", 5, 6)])


def test_the_clock_on_the_wall_finds_work_that_the_events_miss():
    """Both sides pay for launching; what one takes beyond that was hidden. One slow round is no proof."""
    eager = [(240.0, 200.0), (300.0, 200.0)]
    assert second_clock.hidden([(150.0, 100.0), (9000.0, 100.0)], eager, 10) == ""
    told = second_clock.hidden([(410.0, 100.0), (400.0, 100.0)], eager, 10)
    assert told.startswith("By the clock on the wall 10 calls take 400 us, by the events on the stream 100 us")
    assert second_clock.hidden([(3000.0, 2800.0)], eager, 10) == ""


# ---- verdicts


def concluded(under="eager", noise=None, least_us=0.0, missing=None, **samples):
    """The fields of an evaluation with constant samples of each side, 40 of them."""
    reply = {"samples": {name: [us] * 40 if isinstance(us, float) else us for name, us in samples.items()},
             "costs": {"candidate": {"device_us": 8.0, "call_us": 14.0}}, "second": "agrees"}  # fmt: skip
    return conclude(softmax_target(), reply, kind="cuda", under=under, least_us=least_us, missing=missing or {},
                    noise=noise)  # fmt: skip


def test_faster_is_against_eager_and_the_best_baseline_is_told():
    """Twice as fast as eager is `faster`, although the compiled original beats it; both ratios are there."""
    found = concluded(candidate=10.0, eager=20.0, compile=8.0)
    assert (found["verdict"], found["speedup"], found["baseline_us"]) == (Verdict.FASTER, 2.0, 20.0)
    timings = found["timings"]
    assert (timings.best, timings.vs_best.speedup, timings.vs_eager.speedup) == ("compile", 0.8, 2.0)
    assert [(s.name, s.us, s.device_us, s.call_us) for s in timings.sides] == [
        ("candidate", 10.0, 8.0, 14.0), ("eager", 20.0, None, None), ("compile", 8.0, None, None)
    ]  # fmt: skip
    assert timings.second_clock == "agrees"
    assert found["samples"][0] == (10.0, 20.0)


def test_under_compile_the_verdict_is_against_the_compiled_original():
    """The same samples are `slower` there; without a compiled original eager stands in, said in `missing`."""
    found = concluded("compile", candidate=10.0, compile=8.0, eager=20.0)
    assert (found["verdict"], found["speedup"], found["timings"].vs_eager.speedup) == (Verdict.SLOWER, 0.8, 2.0)
    alone = concluded("compile", candidate=10.0, eager=20.0, missing={"compile": "Unsupported: x"})
    assert (alone["verdict"], alone["timings"].best) == (Verdict.FASTER, "eager")
    assert alone["timings"].missing == {"compile": "Unsupported: x"}


def test_a_time_below_the_floor_is_rejected_and_noise_is_named():
    """The floor comes before the verdict; an open result says what disturbed it."""
    assert concluded(least_us=11.0, candidate=10.0, eager=20.0)["verdict"] is Verdict.REJECTED
    found = concluded(noise=Noise(marks=("throttled (power brake)",)), candidate=10.0, eager=10.0)
    assert found["verdict"] is Verdict.INCONCLUSIVE
    assert found["reason"].endswith("It was disturbed: throttled (power brake).")


# ---- when the original is compiled


def compiled(tmp_path, device, wanted=True):
    """The engine's side, with the runner's answers."""
    made = CompiledBaseline(device, "hash", 2, Workspace(tmp_path), (), tmp_path, wanted=wanted)
    asked: list[dict] = []

    def ensure(answer: str | Exception, pid: int) -> str:
        async def make(**fields):
            asked.append(fields)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return asyncio.run(made.ensure(softmax_target(), {}, make, lambda: pid))

    return made, ensure, asked


def test_a_compiled_original_is_of_one_runner(tmp_path):
    """It is there for the runner that has it; the next one is asked again, on CUDA and with a package on the CPU."""
    for device in (cuda_device(), cpu_device()):
        made, ensure, asked = compiled(tmp_path, device)
        target = softmax_target()
        made._path(target).parent.mkdir(parents=True, exist_ok=True)
        made._path(target).write_bytes(b"package")
        assert made.missing(target, 5) == {"compile": UNASKED}
        assert made.lacking(target, 5)
        assert ensure("", 5) == ""
        assert made.missing(target, 5) == {}
        assert made.lacking(target, 6)
        assert ensure("", 6) == ""
        assert len(asked) == 2
        assert all(("package" in fields) is (device.kind == "cpu") for fields in asked)


def test_a_fault_in_compiling_is_kept_and_not_repeated(tmp_path):
    """The reason stands in every result from then on."""
    made, ensure, asked = compiled(tmp_path, cuda_device())
    assert ensure("it gives other results: On fresh inputs: out0 is off.", 5)
    assert made.missing(softmax_target(), 5) == {"compile": "it gives other results: On fresh inputs: out0 is off"}
    assert not made.lacking(softmax_target(), 5)
    assert len(asked) == 1
    assert compiled(tmp_path, cuda_device(), wanted=False)[0].missing(softmax_target(), 5) == {"compile": UNWANTED}


def test_a_process_that_ended_is_asked_again_before_it_is_given_up(tmp_path):
    """What may pass is tried three times; a success in between makes it a baseline."""
    target, died = softmax_target(), WorkerDied("The worker ended with signal SIGKILL.")
    made, ensure, asked = compiled(tmp_path, cuda_device())
    for _ in range(2):
        assert ensure(died, 5) == "The worker ended with signal SIGKILL"
        assert made.lacking(target, 5)
    assert ensure("", 5) == ""
    assert made.missing(target, 5) == {}
    made, ensure, asked = compiled(tmp_path, cuda_device())
    for _ in range(3):
        ensure(died, 5)
    assert made.missing(target, 5) == {"compile": "The worker ended with signal SIGKILL"}
    assert len(asked) == 3
