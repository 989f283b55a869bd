"""`cost` and `--price`."""

from __future__ import annotations

import contextlib
import json

import pytest
import store_fixture as fixture

from forge_tui.cli import main, output
from forge_tui.cli.prices import of_models, parse_prices
from forge_tui.core.errors import UsageError
from forge_tui.core.records import DeployDecision, Deployment, LlmCall
from forge_tui.store.writer import Store

MODELS = ("openai/a", "anthropic/b")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    """Each test may write one document, in a folder of its own."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)


def call(model: str, **changes: object) -> LlmCall:
    """A call with every kind of token."""
    fields = {"model": model, "prompt_tokens": 2000, "cached_tokens": 500, "cache_write_tokens": 100,
              "completion_tokens": 300, "reasoning_tokens": 200, "cost_usd": 0.5, "reserved_usd": 1.0,
              "price": "$1 in, $2 out a million tokens (given by --price)"} | changes  # fmt: skip
    return fixture.llm_call(**fields)


@pytest.fixture
def spent(tmp_path):
    """A session of two models: one has a right kernel that is deployed after its settings were tried."""
    from forge_tui.core.paths import Workspace

    workspace = Workspace(tmp_path / ".forge")
    with fixture.session(workspace) as (store, _, name):
        norm, softmax = "test-RMSNorm", fixture.targets()[0].id
        store.add_node(name, fixture.node(1, proposer=MODELS[0], evaluation=fixture.faster(1.5)))
        store.add_node(name, fixture.node(2, proposer="tune", edge="tune", parent=1, evaluation=fixture.faster(2.0)))
        store.add_llm_call(name, call(MODELS[0]), target_id=norm, edge="draft", node_id=1)
        store.add_llm_call(name, call(MODELS[0], state="failed", error="busy", cost_usd=0.0, prompt_tokens=0,
                                      cached_tokens=0, cache_write_tokens=0, completion_tokens=0, reasoning_tokens=0),
                           target_id=norm, edge="repair", node_id=None)
        store.add_llm_call(name, call(MODELS[1], state="broken", error="cut", cost_usd=1.0, exact=False),
                           target_id=softmax, edge="draft", node_id=None)
        store.open_llm_call(name, call(MODELS[1]), target_id=softmax, edge="draft")
        store.save_deployment(name, Deployment(
            baseline_ms=10.0, deployed_ms=8.0, speedup=1.25, speedup_ci=(1.2, 1.3), max_abs_error=0.0, rms_error=0.0,
            within_tolerance=True,
            decisions=(DeployDecision(target_id=norm, node_id=2, deployed=True, alone_speedup=1.25),)))  # fmt: skip
    return workspace, name


def test_costs_by_model_target_and_purpose(spent, capsys):
    """Calls, tokens of every kind, hit rate, dollars, per right kernel and per percent of the model's time."""
    _, name = spent
    assert main.main(["cost", name, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    first, second = read["models"]
    assert (first["name"], first["calls"], first["done"], first["refused"], first["broken"]) == (MODELS[0], 2, 1, 1, 0)
    assert (first["prompt_tokens"], first["cached_tokens"], first["cache_write_tokens"]) == (2000, 500, 100)
    assert (first["completion_tokens"], first["reasoning_tokens"], first["cache_hit_rate"]) == (300, 200, 0.25)
    assert (first["cost_usd"], first["verified"], first["usd_per_verified"]) == (0.5, 1, 0.5)
    assert first["gained_percent"] == pytest.approx(20.0)
    assert first["usd_per_percent"] == pytest.approx(0.025)
    assert (second["broken"], second["on_their_way"], second["booked_usd"], second["verified"]) == (1, 1, 1.0, 0)
    assert (second["usd_per_verified"], second["gained_percent"]) == (None, None)
    assert [(t["name"], t["cost_usd"]) for t in read["targets"]] == [("RMSNorm", 0.5), ("F.softmax", 1.0)]
    assert [(p["name"], p["calls"], p["cost_usd"]) for p in read["purposes"]] == [("draft", 3, 1.5), ("repair", 1, 0.0)]
    total = read["total"]
    assert (total["calls"], total["cost_usd"], total["unpriced"]) == (4, 1.5, 0)
    assert total["gained_percent"] == pytest.approx(20.0)
    assert read["prices"][0] == f"{MODELS[0]}: $1 in, $2 out a million tokens (given by --price)"


def test_costs_as_text(spent, capsys):
    """Three tables, then what was spent in a sentence, and what is an upper bound."""
    assert main.main(["cost"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split()[:4] == ["model", "calls", "failed", "in"]
    for wanted in ("openai/a", "RMSNorm", "repair", "25%", "Model calls cost $1.50.", "The deployed model takes 20.0%",
                   "$1.00 of it is not the provider's count", "1 call is on its way."):  # fmt: skip
        assert wanted in text


def test_no_calls_and_no_session(tmp_path, capsys):
    """A session without models says so; a name that is none is one sentence."""
    _, name = fixture.finished(tmp_path / "other")
    assert main.main(["cost", "nothing", "--workspace", str(tmp_path / "other")]) == 2
    assert f"There is no session 'nothing' in {tmp_path / 'other'}." in capsys.readouterr().err
    with contextlib.closing(Store.open(fixture.Workspace(tmp_path / "empty"))) as store:
        name = store.create_session(fixture.options(fixture.Workspace(tmp_path / "empty"))).id
    assert main.main(["cost", name, "--workspace", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == f"Session {name} made no model calls.\n"


@pytest.mark.parametrize(("texts", "models", "found"), [
    (["openai/a=1,2"], MODELS, {"openai/a": (1.0, 2.0)}),
    (["openai/a=1,2,0.1", "anthropic/b=3,15,0.3,3.75"], MODELS,
     {"openai/a": (1.0, 2.0, 0.1), "anthropic/b": (3.0, 15.0, 0.3, 3.75)}),
    (["0.5,2"], ["ollama/q:8b"], {"ollama/q:8b": (0.5, 2.0)}),
    ([], (), {}),
])  # fmt: skip
def test_prices_are_read(texts, models, found):
    """By model, or of the only one."""
    assert parse_prices(texts, models) == found


@pytest.mark.parametrize(("text", "models", "said"), [
    ("1,2", MODELS, "does not say of which model"), ("openai/c=1,2", MODELS, "of a model that is not asked"),
    ("openai/a=1", MODELS, "is no price"), ("openai/a=1,x", MODELS, "is no price"),
    ("openai/a=1,-2", MODELS, "is no price"), ("openai/a=nan,1", MODELS, "is no price"),
    ("openai/a=1,2,3,4,5", MODELS, "is no price"), ("=1,2", MODELS[:1], "names no model before its ="),
    (" =1,2", (), "names no model before its ="), ("openai/a=", MODELS, "is no price"), ("", MODELS[:1], "is no price"),
    ("openai/a=1,1e999", MODELS, "is no price"), ("openai/c=1,nan", MODELS, "is no price"),
    ("openai/a=1,2", (), "No --model is named"),
])  # fmt: skip
def test_what_is_no_price_is_a_sentence(text, models, said):
    """With the form that is wanted, or the models there are."""
    with pytest.raises(UsageError) as caught:
        parse_prices([text], models)
    assert said in str(caught.value)


def test_one_model_has_one_price():
    """Twice the same is no fault; two prices are."""
    assert parse_prices(["openai/a=1,2", "openai/a=1.0,2"], MODELS) == {"openai/a": (1.0, 2.0)}
    with pytest.raises(UsageError, match="--price gives openai/a two prices"):
        parse_prices(["openai/a=1,2", "openai/a=3,4"], MODELS)


def test_prices_of_files_are_those_of_the_models_asked():
    """One that lacks its name is not passed over in silence."""
    texts = ["openai/a=1,2", "openai/c=1,2", "3,4", "=5,6"]
    assert of_models(texts, MODELS) == ["openai/a=1,2", "=5,6"]
    assert of_models(texts, ["openai/a"]) == ["openai/a=1,2", "3,4", "=5,6"]
