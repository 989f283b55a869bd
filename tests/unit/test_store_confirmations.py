"""Final confirmations in the store: what they change of a node, and what they do not."""

import pytest
import store_fixture as fixture

from forge_tui.core.errors import ExitCode, StoreError
from forge_tui.core.paths import Workspace
from forge_tui.core.records import Confirmation, Verdict
from forge_tui.report.build import run_report

HELD = Confirmation(
    verdict=Verdict.FASTER, time_us=110.0, baseline_us=198.0, speedup=1.8, speedup_ci=(1.7, 1.9), sha256="sha-2.0",
    sanitised=("memcheck",), unsanitised="Racecheck did not end within 150 s.", seconds=9.5,
)  # fmt: skip
WRONG = Confirmation(verdict=Verdict.REJECTED, reason="On fresh inputs: out0 is wrong.", sha256="sha-2.0", log="a log")


@pytest.fixture
def workspace(tmp_path):
    """An empty workspace."""
    return Workspace(tmp_path / ".forge")


@pytest.fixture
def searched(workspace):
    """A session with a kernel at 2x and one at 1.5x."""
    with fixture.session(workspace) as (store, reader, name):
        for number, speedup in ((1, 2.0), (2, 1.5)):
            store.add_node(name, fixture.node(number))
            store.set_evaluation(name, number, fixture.faster(speedup))
        yield store, reader, name


def test_one_that_held_stands_beside_the_verdict(searched):
    """Verdict and numbers of the search stay; what the confirmation found is read with them, and reported."""
    store, reader, name = searched
    store.confirm(name, 1, HELD)
    store.confirm(name, 1, HELD)
    evaluation = reader.node(name, 1).evaluation
    assert (evaluation.verdict, evaluation.speedup, evaluation.confirmation) == (Verdict.FASTER, 2.0, HELD)
    assert reader.nodes(name, sources=False)[0].evaluation.confirmation == HELD
    assert reader.node(name, 2).evaluation.confirmation is None
    events = [e for e in reader.events(name) if e.kind == "node_confirmed"]
    assert [e.data for e in events] == [{
        "node": 1, "target": "test-RMSNorm", "verdict": "faster", "reason": "", "speedup": 1.8,
        "unsanitised": "Racecheck did not end within 150 s.",
    }]  # fmt: skip
    result = run_report(reader, name).targets[0]
    assert (result.speedup, result.confirmed, result.confirmed_speedup) == (2.0, True, 1.8)
    assert result.unsanitised == "Racecheck did not end within 150 s."


def test_one_that_failed_changes_the_node(searched):
    """It counts as what it turned out to be, without a speed; the next best one is the best."""
    store, reader, name = searched
    store.confirm(name, 1, WRONG)
    evaluation = reader.node(name, 1).evaluation
    assert evaluation.verdict is Verdict.REJECTED
    assert evaluation.reason == "In the final confirmation: On fresh inputs: out0 is wrong."
    assert (evaluation.speedup, evaluation.speedup_ci, evaluation.time_us) == (None, None, None)
    assert (evaluation.log, evaluation.sha256) == ("a log", "sha-2.0")
    result = run_report(reader, name).targets[0]
    assert (result.speedup, result.confirmed, result.unsanitised) == (1.5, None, "")


def test_what_cannot_be_confirmed(searched):
    """Only a kernel that was found faster is a winner, and a failure of ours says nothing of it."""
    store, reader, name = searched
    store.add_node(name, fixture.node(3))
    store.set_evaluation(name, 3, fixture.failed(Verdict.REJECTED, "wrong"))
    store.add_node(name, fixture.node(4))
    for number, confirmation in ((3, HELD), (4, HELD), (9, HELD), (1, Confirmation(verdict=Verdict.INFRA))):
        with pytest.raises(StoreError) as caught:
            store.confirm(name, number, confirmation)
        assert caught.value.exit_code is ExitCode.BUG
    assert [n.evaluation and n.evaluation.confirmation for n in reader.nodes(name)] == [None] * 4
