"""A small campaign of calls under fire, through the real client, with books on both sides."""

from __future__ import annotations

import llm_campaign
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys."""
    monkeypatch.setenv("OPENAI_API_KEY", "none-at-all")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none-at-all")


@pytest.mark.parametrize(("budget", "faults", "short"), [(1.0, 0.5, False), (0.05, 0.2, True)])
async def test_the_books_are_the_servers(tmp_path, budget: float, faults: float, short: bool) -> None:
    """Every request has its row, completed ones are counted exactly, broken ones are bounded, the budget holds."""
    found = await llm_campaign.run(
        tmp_path, calls=60, faults=faults, parallel=8, budget=budget, quiet_s=1.0
    )
    assert found.complaints(60, budget) == []
    assert (found.proposals["no money"] > 0) is short
    assert found.states()["done"] > 10
    assert found.states()["broken"] > 2
    if not short:
        assert len(set(found.played) & set(llm_campaign.FAULTS)) > 20, "nearly every kind of fault was played"
        # the check can fail: a row that is lost, one that is counted wrongly, one that is too dear
        found.rows.pop(next(i for i, row in enumerate(found.rows) if row.state == "done"))
        assert any(line.startswith("completed calls") for line in found.complaints(60, budget))
        assert any("of 1e-06" in line for line in found.complaints(60, 1e-6))
