"""What is known of models before they are asked, held against LiteLLM's own answers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forge_tui.proposers import calling, capabilities, catalogue, providers, table
from forge_tui.proposers.catalogue import Served

#: what prices and limits are read from
FIELDS = ("max_input_tokens", "max_output_tokens", "input_cost_per_token", "output_cost_per_token",
          "cache_read_input_token_cost", "supports_function_calling", "supports_prompt_caching", "supports_reasoning",
          "prompt_cache_min_tokens")  # fmt: skip


@pytest.fixture(scope="module")
def litellm() -> Any:
    """LiteLLM, imported once."""
    return calling.load_litellm()


def chat_rows() -> dict[str, tuple[str, dict[str, Any]]]:
    """Some models of every provider: name, key and row."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    seen: dict[tuple[str, bool], int] = {}
    for key, row in table.rows().items():
        kind = str(row.get("litellm_provider")), "/" in key
        if row.get("mode") in table.CHAT and seen.setdefault(kind, 0) < 2:
            seen[kind] += 1
            found[table.name_of(key, row)] = key, row
    return found


def test_the_file_has_what_the_library_has(litellm: Any) -> None:
    """The same keys, and for models of every provider the same row as LiteLLM finds by name."""
    assert set(table.rows()) == set(litellm.model_cost) - {"sample_spec"}
    assert len(chat_rows()) > 100
    differing = {}
    for name in chat_rows():
        if name.startswith(("lemonade/", "ollama", "huggingface/")):
            # LiteLLM asks a server about these, which is why the file is read
            continue
        info: dict[str, Any] = {}
        # any exception class may come from there: the table is looked up through provider code
        with contextlib.suppress(Exception):
            info = dict(litellm.get_model_info(name))
        row = table.row(name)
        if info and {f: info.get(f) or None for f in FIELDS} != {f: row.get(f) or None for f in FIELDS}:
            differing[name] = info.get("key")
    assert differing == {}


def test_names_are_those_that_litellm_takes(litellm: Any) -> None:
    """A listed name leads LiteLLM to the provider that the list says; what signs in through a browser is not tried."""
    wrong = {}
    for name, (_, row) in chat_rows().items():
        if name.startswith(("chatgpt/", "github_copilot/", "anyscale/", "azure/mistral")):
            continue
        whose = table.way(str(row["litellm_provider"]))
        found = litellm.get_llm_provider(name)[1]
        if found not in (whose, f"{whose}_chat"):
            wrong[name] = found
    assert wrong == {}


@pytest.mark.parametrize(("name", "key"), [
    ("gpt-4o", "gpt-4o"), ("openai/gpt-4o", "gpt-4o"), ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
    ("azure/eu/gpt-5.1", "azure/eu/gpt-5.1"), ("gemini/gemini-2.5-pro", "gemini/gemini-2.5-pro"),
    ("ft:gpt-4o-2024-08-06:org::id", "ft:gpt-4o-2024-08-06"),
    ("bedrock/us-east-1/anthropic.claude-sonnet-4-20250514-v1:0", "anthropic.claude-sonnet-4-20250514-v1:0"),
    # the same name at another provider is another offer
    ("hosted_vllm/gpt-4o", ""), ("openrouter/claude-sonnet-4-5", ""), ("openai/none", ""), ("", ""), ("/", ""),
])  # fmt: skip
def test_a_row_is_found_by_name(name, key):
    """With or without the provider, and never that of another provider."""
    assert table.row(name) == (table.rows()[key] if key else {})


def test_keys_are_those_that_litellm_looks_for(litellm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to have a key satisfies LiteLLM, and without one it names nothing else."""
    for name in {name for ways in providers.KEYS.values() for way in ways for name in way}:
        monkeypatch.delenv(name, raising=False)
    for provider, ways in providers.KEYS.items():
        if not ways:
            continue
        missing = set(litellm.validate_environment(f"{provider}/m")["missing_keys"])
        assert missing, provider
        assert missing <= {name for way in ways for name in way}, provider
        for way in ways:
            with monkeypatch.context() as patch:
                for name in way:
                    patch.setenv(name, "x" * 20)
                assert litellm.validate_environment(f"{provider}/m")["missing_keys"] == [], (provider, way)


def test_whether_a_key_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From the environment or the file of keys; either of two names is enough; unknown where nobody knows the name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in [*os.environ]:
        if name.endswith(("_API_KEY", "_AUTH_TOKEN")):
            monkeypatch.delenv(name)
    asked = ("openai", "anthropic", "gemini", "ollama", "databricks")
    states = providers.key_states(asked)
    assert list(states.values()) == ["no", "no", "no", "needless", "unknown"]
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "a-token-of-mine")
    file = tmp_path / "forge-tui" / "keys"
    file.parent.mkdir()
    file.write_text("GOOGLE_API_KEY=from-the-file-1\n")
    file.chmod(0o600)
    states = providers.key_states(asked)
    assert (states["openai"], states["anthropic"], states["gemini"]) == ("no", "yes", "yes")
    assert providers.arguments("gemini") == ({"api_key": "from-the-file-1"}, ())
    assert providers.key("gemini") == ("", "from-the-file-1", ())
    assert providers.key("anthropic") == ("ANTHROPIC_AUTH_TOKEN", "a-token-of-mine", ())
    assert providers.arguments("azure")[1] == ("AZURE_API_BASE", "AZURE_API_VERSION", "AZURE_API_KEY")
    file.chmod(0o644)
    assert providers.key_states(["gemini"]) == {"gemini": "no"}


@pytest.mark.parametrize(("model", "expected"), [
    ("openai/o3", (False, True, "automatic", True)), ("gpt-5-mini", (False, True, "automatic", True)),
    ("openai/gpt-5.5", (False, True, "automatic", True)), ("openai/gpt-6-sol", (False, True, "automatic", True)),
    ("openrouter/openai/gpt-5", (False, True, "automatic", True)),
    ("openai/gpt-5.1", (True, True, "automatic", True)), ("openai/gpt-5-chat-latest", (True, None, "none", True)),
    ("gpt-4o", (True, None, "automatic", False)), ("gpt-4-turbo", (True, None, "none", False)),
    ("anthropic/claude-sonnet-4-5", (True, None, "markers", False)),
    ("anthropic/claude-opus-4-20250514", (True, None, "markers", None)),
    ("anthropic/claude-opus-4-7", (False, None, "markers", False)),
    ("anthropic/claude-opus-5", (False, None, "markers", True)),
    ("anthropic/claude-newer-9", (False, None, "markers", None)),
    ("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0", (True, None, "markers", False)),
    ("openrouter/anthropic/claude-opus-4.7", (False, None, "markers", None)),
    ("deepseek/deepseek-reasoner", (None, None, "automatic", False)),
    ("gemini/gemini-2.5-pro", (None, None, "automatic", True)),
    ("hosted_vllm/x", (None, None, None, None)), ("openai/gpt-oss-120b", (None, None, None, None)),
])  # fmt: skip
def test_what_models_take(model, expected):
    """Temperature, the name of the limit, caching, and whether they reason unseen."""
    found = capabilities.of(model)
    assert (found.temperature, found.completion_limit, found.caching, found.reasons_unseen) == expected


def test_every_value_has_a_source() -> None:
    """Our own fact, the table's, or unknown, and unknown is None."""
    found = capabilities.of("openai/gpt-5")
    assert (found.context, found.most_output, found.tools) == (272_000, 128_000, True)
    assert (found.sources["temperature"], found.sources["context"]) == (capabilities.OURS, table.source())
    for name in ("openai/gpt-5", "mistral/mistral-large-latest", "x/y", ""):
        does = capabilities.of(name)
        assert set(does.sources) == set(capabilities.FIELDS)
        for field in capabilities.FIELDS:
            assert (getattr(does, field) is None) == (does.sources[field] == capabilities.UNKNOWN), (name, field)


def test_our_facts_do_not_contradict_the_table() -> None:
    """Where LiteLLM's table refuses sampling, or says that effort is none by itself, we say the same."""
    rows = {table.name_of(key, row): row for key, row in table.rows().items() if row.get("mode") in table.CHAT}
    refusing = [name for name, row in rows.items() if row.get("supports_sampling_params") is False]
    assert len(refusing) > 50
    assert [name for name in refusing if capabilities.of(name).temperature is not False] == []
    taking = [name for name, row in rows.items() if row.get("default_reasoning_effort") == "none"]
    assert len(taking) > 10
    assert [name for name in taking if capabilities.of(name).temperature is not True] == []
    assert not capabilities.takes_temperature("openai/o3", 0.2)
    assert capabilities.takes_temperature("openai/o3", 1.0)
    assert capabilities.takes_temperature("hosted_vllm/x", 0.2)


def test_the_catalogue_of_models() -> None:
    """Every chat model with price, size and key; retired ones only when asked for; words filter in any order."""
    found = {model.name: model for model in catalogue.known()}
    assert len(found) > 2000
    sonnet = found["anthropic/claude-sonnet-4-6"]
    assert (sonnet.input_usd, sonnet.output_usd, sonnet.cached_usd) == pytest.approx((3, 15, 0.3))
    retired = {model.name for model in catalogue.known(everything=True)} - set(found)
    assert len(retired) > 100
    assert {m.name for m in catalogue.matching(found.values(), "SONNET anthropic", "anthropic")} == {
        name for name in found if name.startswith("anthropic/") and "sonnet" in name}  # fmt: skip
    assert catalogue.matching(found.values(), "no-such-model-anywhere") == []
    shown = catalogue.with_keys(catalogue.matching(found.values(), "gpt-4o"), {"azure": "yes", "openai": "no"})
    assert list(dict.fromkeys(model.provider for model in shown))[:2] == ["azure", "openai"]


def test_models_of_ones_own_and_of_servers_come_with_what_is_known() -> None:
    """An address and a price of settings count; what a server says of its size counts over the table."""
    own = catalogue.own(["hosted_vllm/mine", "gpt-4o"], "http://a/v1", {"hosted_vllm/mine": "http://b/v1"},
                        {"hosted_vllm/mine": (1.0, 2.0, 0.5)})  # fmt: skip
    assert [(m.name, m.api_base, m.input_usd, m.cached_usd) for m in own] == [
        ("hosted_vllm/mine", "http://b/v1", 1.0, 0.5), ("gpt-4o", "http://a/v1", 2.5, 1.25)]  # fmt: skip
    (here, other) = catalogue.served([Served(id="gpt-4o", context=999), Served(id="org/new")], "openai", "http://c",
                                     "http://c/v1")  # fmt: skip
    assert (here.capabilities.context, here.capabilities.sources["context"], here.input_usd) == (999, "http://c", 2.5)
    assert (other.name, other.input_usd, other.capabilities.context) == ("openai/org/new", None, None)
    (marked, _) = catalogue.with_keys([here, other], {"openai": "no"})
    assert marked.key == "needless"
    assert [m.listed_by for m in catalogue.merged(own, [here])] == ["settings", "settings", "http://c"]


def test_nothing_heavy_is_imported() -> None:
    """The catalogue may be used by the screen."""
    code = ("import sys; from forge_tui.proposers import catalogue, live, counting; catalogue.known(); "
            "print([m for m in ('litellm', 'anthropic', 'httpx', 'torch', 'openai') if m in sys.modules])")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
