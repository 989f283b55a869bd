"""The report's numbers, worked out by hand from what the engine wrote."""

import contextlib

import pytest
import store_fixture as fixture

from forge_tui.core.errors import UsageError
from forge_tui.core.events import Kind
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Evaluation, Verdict
from forge_tui.core.reports import TargetResult
from forge_tui.report import markdown, text
from forge_tui.report.build import best_node, details, repaid_after, run_report, spending
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store


@pytest.fixture
def workspace(tmp_path):
    """A folder that is not there yet."""
    return Workspace(tmp_path / ".forge")


def test_isolation_is_in_the_report(tmp_path):
    """What the engine found is what `--json` says; nothing before it did."""
    workspace, name = fixture.finished(tmp_path)
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert run_report(reader, name).isolation == ""
    with contextlib.closing(Store.open(workspace)) as store:
        store.event(name, Kind.ISOLATION, {"isolated": True, "short": "isolated: landlock+seccomp", "text": "x",
                                           "level": "info"})  # fmt: skip
    with contextlib.closing(Reader.open(workspace)) as reader:
        assert run_report(reader, name).isolation == "isolated: landlock+seccomp"


def test_profiling_and_search_are_told_apart(tmp_path):
    """The report has what counted for the minutes beside all of the time, in the table and in the document."""
    workspace, name = fixture.finished(tmp_path)
    with contextlib.closing(Store.open(workspace)) as store:
        store.add_elapsed(name, 40.0, profile_s=35.0, search_s=5.0)
    with contextlib.closing(Reader.open(workspace)) as reader:
        report, more = run_report(reader, name), details(reader, name)
    assert (report.elapsed_s, report.profile_s, report.search_s) == (130.0, 35.0, 5.0)
    assert "spent        5 evaluations, 2 min 10 s, $0.0100\n             of it 35 s of profiling and 5 s of search\n" \
        in text.render(report)  # fmt: skip
    assert "| time spent | 2 min 10 s (35 s of profiling, 5 s of search) |" in markdown.render(report, more)


def test_report_of_a_finished_session(tmp_path):
    """Every field of the report of a session whose rows are known."""
    workspace, name = fixture.finished(tmp_path)
    with contextlib.closing(Reader.open(workspace)) as reader:
        report = run_report(reader, name)
    assert (report.session, report.model, report.device, report.under) == (
        "tiny-llm-1", "example:tiny-llm", "cpu", "eager",
    )  # fmt: skip
    assert (report.baseline_ms, report.deployed_ms, report.speedup, report.speedup_ci) == (5.0, 4.0, 1.25, (1.2, 1.3))
    assert report.baselines_ms == {"eager": 5.0, "compile": 4.5}
    assert report.speedup_vs_eager == 1.25
    assert report.speedup_vs_best == 4.5 / 4.0
    assert (report.max_abs_error, report.evaluations, report.cost_usd) == (2e-6, 5, 0.01)
    assert report.cost_is_lower_bound is False
    assert (report.stop_reason, report.state, report.elapsed_s) == ("All 5 evaluations are used up.", "done", 90.0)
    assert report.warnings == ("Two calls were left out.", "The clock was not steady.")
    assert report.targets == (
        TargetResult(
            name="RMSNorm", signature="bf16[32,128], bf16[128] -> bf16[32,128]", calls=9, share=0.36, headroom_ms=1.5,
            verdict=Verdict.FASTER, baseline_us=200.0, best_us=100.0, speedup=2.0, speedup_ci=(1.75, 2.25),
            evaluations=3, deployed=True, why_not="", resources={"forge_launch": {"registers": 32}},
        ),
        TargetResult(
            name="F.softmax", signature="f32[64,256] -> f32[64,256]", calls=1, share=0.5, headroom_ms=0.09,
            verdict=Verdict.FASTER, baseline_us=100.0, best_us=80.0, speedup=1.25, speedup_ci=(1.0, 1.5),
            evaluations=2, deployed=False, why_not="the model is not faster",
                resources={"forge_launch": {"registers": 32}},
        ),
    )  # fmt: skip


def test_details_have_sources_decisions_and_counts(tmp_path):
    """What a document needs beside the report: the best kernels, the verdicts, what the LLM cost."""
    workspace, name = fixture.finished(tmp_path)
    with contextlib.closing(Reader.open(workspace)) as reader:
        found = details(reader, name)
    assert {key: (node.id, node.source) for key, node in found.best.items()} == {
        "RMSNorm": (3, "// kernel 3\n"), "F.softmax": (4, "// kernel 4\n"),
    }  # fmt: skip
    assert found.verdicts == {"RMSNorm": {"faster": 2, "compile_error": 1}, "F.softmax": {"faster": 1, "slower": 1}}
    assert found.decisions["RMSNorm"].calls == 9
    assert [(s.model, s.calls, s.prompt_tokens, s.cost_usd) for s in found.spending] == [("openai/some", 1, 1000, 0.01)]


def test_report_at_every_stage(workspace):
    """Before anything is measured the numbers are None; each stage adds what it found."""
    with contextlib.closing(Store.open(workspace)) as store:
        name = store.create_session(fixture.options(workspace)).id
        with contextlib.closing(Reader.open(workspace)) as reader:
            report = run_report(reader, name)
            assert (report.targets, report.state, report.evaluations) == ((), "starting", 0)
            numbers = (report.baseline_ms, report.deployed_ms, report.speedup, report.speedup_ci,
                       report.speedup_vs_eager, report.speedup_vs_best, report.max_abs_error)  # fmt: skip
            assert numbers == (None,) * 7
            assert report.baselines_ms == {}


def test_running_session_has_no_reasons_yet(workspace):
    """While the engine lives, what is not decided has no reason why not; once it is gone, it has."""
    with fixture.session(workspace) as (store, reader, name):
        store.set_state(name, "searching")
        report = run_report(reader, name)
        assert [t.name for t in report.targets] == ["RMSNorm", "F.softmax"]
        assert [(t.verdict, t.evaluations, t.why_not, t.deployed) for t in report.targets] == [(None, 0, "", False)] * 2
        store.event(name, Kind.TARGET_OPENED, {"target": "test-F.softmax", "usable": True, "eager_us": 105.0})
        store.add_node(name, fixture.node(1))
        store.set_evaluation(name, 1, fixture.faster(2.0))
        report = run_report(reader, name)
        assert [t.name for t in report.targets] == ["F.softmax", "RMSNorm"], "in the order of the search"
        assert [(t.baseline_us, t.why_not) for t in report.targets] == [(105.0, ""), (200.0, "")]
        assert report.targets[1].speedup == 2.0
        assert report.speedup is None
        store.release(name)
        assert [t.why_not for t in run_report(reader, name).targets] == [
            "No kernel was tried.", "The session ended before the whole model was measured.",
        ]  # fmt: skip


def test_reasons_why_not(workspace):
    """Left out, nothing right, nothing faster, not tried inside the model: each has its sentence."""
    with fixture.session(workspace) as (store, reader, name):
        store.event(name, Kind.TARGET_OPENED, {
            "target": "test-RMSNorm", "usable": False, "reason": "its outputs differ between calls", "eager_us": None,
        })  # fmt: skip
        for number, verdict in enumerate([Verdict.REJECTED, Verdict.COMPILE_ERROR, Verdict.REJECTED, Verdict.INFRA], 1):
            store.add_node(name, fixture.node(number, "test-F.softmax"))
            store.set_evaluation(name, number, fixture.failed(verdict, "no"))
        store.set_state(name, "done")
        store.release(name)
        norm, softmax = run_report(reader, name).targets
        assert (norm.why_not, norm.baseline_us) == ("its outputs differ between calls", None)
        assert softmax.why_not == "No kernel was right: 2 rejected, 1 compile_error."
        assert (softmax.verdict, softmax.evaluations) == (None, 3)
        store.add_node(name, fixture.node(5, "test-F.softmax"))
        store.set_evaluation(name, 5, Evaluation(verdict=Verdict.SLOWER, time_us=4.0, baseline_us=2.0, speedup=0.5))
        softmax = run_report(reader, name).targets[1]
        assert (softmax.why_not, softmax.verdict, softmax.speedup) == ("No kernel was found faster.", "slower", 0.5)
        store.add_node(name, fixture.node(6, "test-F.softmax"))
        store.set_evaluation(name, 6, fixture.faster(1.5, 100.0))
        store.save_deployment(name, fixture.deployment(decisions=()))
        assert run_report(reader, name).targets[1].why_not == "It was not tried inside the model."


def test_speedups_under_compile(workspace):
    """Under compile the baseline is the compiled model, and eager is one of the others."""
    with fixture.session(workspace, under="compile") as (store, reader, name):
        store.save_deployment(name, fixture.deployment(
            baseline_ms=4.5, deployed_ms=3.6, speedup=1.25, baselines_ms={"eager": 5.4}, within_tolerance=False,
            baseline_failures={"compile-max": "did not end"},
        ))  # fmt: skip
        report = run_report(reader, name)
    assert (report.speedup, report.speedup_vs_best) == (1.25, 1.25)
    assert report.speedup_vs_eager == pytest.approx(1.5)
    assert report.baselines_ms == {"compile": 4.5, "eager": 5.4}
    assert report.baseline_failures == {"compile-max": "did not end"}
    assert report.warnings[-1] == "The deployed model's outputs are outside the tolerance (1e-4 relative)."


def test_model_without_kernels_is_said_to_be_the_same(workspace):
    """Where the gate took every kernel out, the report calls the difference noise; with one kernel in, it does not."""
    said = "No kernel stays in the model: it is the original."
    with fixture.session(workspace) as (store, reader, name):
        store.save_deployment(name, fixture.deployment(decisions=fixture.deployment().decisions[1:]))
        assert said in run_report(reader, name).warnings
        store.save_deployment(name, fixture.deployment())
        assert said not in run_report(reader, name).warnings


def test_cost_is_a_lower_bound_with_unpriced_calls(workspace):
    """A call without a known price makes the sum a lower bound, and is counted for its model."""
    with fixture.session(workspace) as (store, reader, name):
        calls = [fixture.llm_call(), fixture.llm_call(model="local", cost_usd=None, priced=False, error="timed out"),
                 fixture.llm_call()]  # fmt: skip
        for call in calls:
            store.add_llm_call(name, call, target_id="test-RMSNorm", edge="draft", node_id=None)
        report = run_report(reader, name)
    assert (report.cost_usd, report.cost_is_lower_bound) == (0.02, True)
    first, second = spending(calls)
    assert (first.calls, first.completion_tokens, first.unpriced, first.failed) == (2, 400, 0, 0)
    assert (second.calls, second.cost_usd, second.unpriced, second.failed) == (1, 0.0, 1, 1)


def test_best_node_is_the_fastest_that_is_surely_faster():
    """A verdict `faster` beats a higher but inconclusive speedup; among equals the older one."""
    def made(number, verdict, speedup):
        return fixture.node(number, evaluation=Evaluation(verdict=verdict, speedup=speedup))

    unsure = made(1, Verdict.INCONCLUSIVE, 3.0)
    wrong = made(2, Verdict.REJECTED, 9.0)
    slow = made(3, Verdict.SLOWER, 0.5)
    assert best_node([slow, unsure, wrong, fixture.node(4)]) is unsure
    fast, again = made(5, Verdict.FASTER, 1.1), made(6, Verdict.FASTER, 1.1)
    assert best_node([unsure, again, fast]) is fast
    assert best_node([wrong]) is None
    assert best_node([]) is None


def test_names_that_are_no_targets_do_not_hide_the_report(workspace):
    """A session that ended because of a wrong --target still has a report."""
    with fixture.session(workspace, target_names=("nosuch",)) as (store, reader, name):
        store.set_state(name, "failed", stop_reason="There is no target named 'nosuch'.")
        report = run_report(reader, name)
        assert (report.targets, report.stop_reason) == ((), "There is no target named 'nosuch'.")
        with pytest.raises(UsageError):
            run_report(reader, "nosuch")


@pytest.mark.parametrize(
    ("spent", "rate", "after", "expected"),
    [(2.0, 3.6, 5.0, 400_000), (0.0, 3.6, 5.0, 0), (2.0, 0.0, 5.0, None), (2.0, 3.6, 10.0, None)],
)
def test_a_search_has_paid_for_itself_after_so_many_calls(spent, rate, after, expected):
    """5 ms less a call at 3.6 dollars an hour are 5 millionths of a dollar: 2 dollars are back after 400,000 calls."""
    deployment = fixture.deployment(baseline_ms=10.0, deployed_ms=after)
    assert repaid_after(spent, rate, deployment) == expected
