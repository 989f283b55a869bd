"""Mistyped models are noticed before anything is profiled, without importing LiteLLM."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forge_tui.cli import model_names
from forge_tui.core.errors import UsageError

#: some model of the table, whichever it is this year
CLAUDE = next(name for name, provider in model_names._models().items() if provider == "anthropic" and "/" not in name)


def noted(*models: str, api_base: str | None = None) -> list[str]:
    """What was remarked on the names."""
    said: list[str] = []
    model_names.check(models, api_base, said.append)
    return said


@pytest.mark.parametrize("name", [
    "templates", "inbox", "sim", "replay:s-1", "openai/gpt-5", "gpt-5", f"anthropic/{CLAUDE}",
    "ollama/anything-at-all", "hosted_vllm/mine",
])  # fmt: skip
def test_names_that_are_taken_in_silence(name):
    """Ours, what stands in the table with or without its provider, and providers that serve any name."""
    assert noted(name) == []


@pytest.mark.parametrize(("name", "meant"), [(f"antropic/{CLAUDE}", f"anthropic/{CLAUDE}"),
                                             ("inbx", "inbox"), ("gpt-5-mni", "gpt-5-mini"), ("zzzz", "")])  # fmt: skip
def test_names_that_lead_nowhere(name, meant):
    """One sentence, with what was probably meant; a server of one's own takes any name."""
    with pytest.raises(UsageError, match=f"There is no model '{name}' that LiteLLM knows") as caught:
        noted(name)
    assert (f"Did you mean {meant}?" in caught.value.what) if meant else ("mean" not in caught.value.what)
    assert noted(name, api_base="http://localhost:1/v1") == []


def test_a_new_model_of_a_known_provider_is_remarked_on():
    """It may be newer than the table."""
    (said,) = noted("openai/gpt-5-mni")
    assert said == "openai/gpt-5-mni is not in LiteLLM's table, and is asked as it is. Did you mean gpt-5-mini?"


def test_litellm_is_not_imported():
    """The look-up costs a file, not seconds."""
    code = ("import sys; from forge_tui.cli import model_names; model_names.check(['openai/gpt-5'], None, print); "
            "print('litellm' in sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_tables_every_name_is_taken(monkeypatch):
    """A LiteLLM that keeps them elsewhere is no reason to refuse."""
    model_names._models.cache_clear()
    monkeypatch.setattr(model_names, "_read", lambda _name: {})
    try:
        assert noted("zzzz") == []
    finally:
        model_names._models.cache_clear()


@pytest.mark.parametrize(("name", "said"), [
    ("", "--model names nothing. Name a model as provider/model, or leave it out."),
    (" \t", "--model names nothing. Name a model as provider/model, or leave it out."),
    (" inbox", "--model ' inbox' has blanks or control characters in it. Did you mean inbox?"),
    ("openai/gpt-5\n", "--model 'openai/gpt-5\\n' has blanks or control characters in it. Did you mean openai/gpt-5?"),
])  # fmt: skip
def test_what_can_be_no_name_is_refused_whoever_serves_it(name, said):
    """A server of one's own takes any name, but not these; files of replies may be called anything."""
    with pytest.raises(UsageError) as caught:
        model_names.check_form(["inbox", name])
    assert str(caught.value) == said
    model_names.check_form(["replay:my replies.jsonl", "hosted_vllm/mine:7b@x"])
