"""Whatever an engine writes, a reader gets back."""

import contextlib
import tempfile
from pathlib import Path

import msgspec
import store_fixture as fixture
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_tui.core.paths import Workspace
from forge_tui.core.records import DeployDecision, Deployment, Edge, Evaluation, LlmCall, Node, Verdict
from forge_tui.core.timings import Noise, Ratio, SideTime, Timings
from forge_tui.store import codec
from forge_tui.store.reader import Reader
from forge_tui.store.writer import Store

text = st.text(max_size=40)
real = st.floats(allow_nan=False)
whole = st.integers(-(2**63), 2**63 - 1)
maybe = st.none() | real
resources = st.dictionaries(text, st.dictionaries(text, whole, max_size=2), max_size=2)

ratios = st.builds(Ratio, speedup=real, low=real, high=real)
evaluations = st.builds(
    Evaluation, verdict=st.sampled_from(Verdict), reason=text, compile_s=real, verify_s=real, timing_s=real,
    time_us=maybe, baseline_us=maybe, speedup=maybe, speedup_ci=st.none() | st.tuples(real, real), max_abs_error=maybe,
    error_vs_eager=maybe, samples=st.lists(st.tuples(real, real), max_size=5).map(tuple), sha256=text, log=text,
    resources=resources, timings=st.none() | st.builds(
        Timings, decides=text, best=text, missing=st.dictionaries(text, text, max_size=2), second_clock=text,
        vs_eager=ratios, vs_best=ratios, sides=st.lists(st.builds(SideTime, name=text, us=real), max_size=3).map(tuple),
        noise=st.none() | st.builds(Noise, marks=st.lists(text, max_size=2).map(tuple), others=maybe),
    ),
)  # fmt: skip
nodes = st.builds(
    Node, id=st.just(1), target_id=st.sampled_from([t.id for t in fixture.targets()]), parent=st.none(),
    edge=st.sampled_from(Edge), proposer=text, source=text, language=st.sampled_from(["cuda", "cpp"]), idea=text,
    family=text, tunables=st.dictionaries(text, whole, max_size=3), key=text, evaluation=st.none() | evaluations,
    cost_usd=real, repairs=st.none(),
)  # fmt: skip
calls = st.builds(
    LlmCall, model=text, prompt=text, reply=text, prompt_tokens=whole, cached_tokens=whole, completion_tokens=whole,
    cost_usd=maybe, priced=st.booleans(), latency_s=real, error=text, attempt=whole, reserved_usd=maybe,
    state=st.sampled_from(["open", "done", "failed", "broken", "cancelled", "lost"]), exact=st.booleans(),
    cache_write_tokens=whole, reasoning_tokens=whole, price=text,
)  # fmt: skip
decisions = st.builds(
    DeployDecision, target_id=text, node_id=whole, deployed=st.booleans(), why_not=text, alone_speedup=maybe,
    alone_ci=st.none() | st.tuples(real, real), calls=whole, fallbacks=whole, host_us=maybe, host_us_original=maybe,
)  # fmt: skip
deployments = st.builds(
    Deployment, baseline_ms=real, deployed_ms=real, speedup=real, speedup_ci=st.tuples(real, real), max_abs_error=real,
    rms_error=real, within_tolerance=st.booleans(), decisions=st.lists(decisions, max_size=3).map(tuple),
    baselines_ms=st.dictionaries(text, real, max_size=2), baseline_failures=st.dictionaries(text, text, max_size=2),
    tolerance=text, samples=st.lists(st.tuples(real, real), max_size=3).map(tuple),
)  # fmt: skip

_folder = tempfile.TemporaryDirectory(prefix="forge-property-", ignore_cleanup_errors=True)
_workspace = Workspace(Path(_folder.name))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(node=nodes, call=calls, deployment=deployments)
def test_everything_reads_back_equal(node, call, deployment):
    """Nodes, verdicts, samples, calls and deployments of any value come back equal, also when written twice."""
    with contextlib.closing(Store.open(_workspace)) as store:
        name = store.create_session(fixture.options(_workspace)).id
        store.save_profile(name, fixture.profile())
        for _ in range(2):
            store.add_node(name, node)
            store.save_deployment(name, deployment)
        store.add_llm_call(name, call, target_id=node.target_id, edge=node.edge, node_id=node.id)
        with contextlib.closing(Reader.open(_workspace)) as reader:
            assert reader.node(name, 1) == node
            assert [entry.call for entry in reader.llm_calls(name)] == [call]
            assert reader.deployment(name) == deployment
            assert reader.session(name).evaluations == int(
                node.evaluation is not None and node.evaluation.verdict is not Verdict.INFRA
            )


def test_every_field_has_a_column():
    """A field that is added to a record must be added to its table too."""
    evaluation = {"speedup_low", "speedup_high"} | set(Evaluation.__struct_fields__) - {
        "speedup_ci", "samples", "confirmation",
    }  # fmt: skip
    assert set(codec.EVALUATION) == evaluation
    assert set(codec.NODE) == set(Node.__struct_fields__) - {"evaluation"}
    assert set(codec.LLM_CALL) == set(LlmCall.__struct_fields__)
    assert set(codec.HOTSPOT) == set(msgspec.structs.asdict(fixture.profile().hotspots[0]))
