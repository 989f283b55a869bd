"""`prompt --count`: tokens by the providers' own count, after consent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import store_fixture as fixture
from fault_server import FaultServer, Play, always, in_background

from forge_tui.cli import main, output
from forge_tui.core.paths import Workspace

CLAUDE, OWN = "anthropic/claude-sonnet-4-5", "hosted_vllm/x"
KEY = "sk-test-0123456789abcdef"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A running server that counts 900 tokens."""
    with in_background() as made:
        made.count = always(Play())
        yield made


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and a made-up key."""
    monkeypatch.setattr(output, "_written", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def a_session(folder: Path, **options: object) -> None:
    """A profiled session in the folder's workspace."""
    with fixture.session(Workspace(folder / ".forge"), **options):
        pass


def test_the_sessions_models_are_counted(here: Path, server: FaultServer, capsys: Captured, monkeypatch) -> None:
    """Anthropic's model by its server, the others at most; a key in the prompt is not sent."""
    a_session(here, proposers=("templates", CLAUDE, OWN, "inbox"), api_base=server.base)
    # by chance in the prompt
    monkeypatch.setenv("SOME_API_KEY", "kernels that replace one callable")
    assert main.main(["prompt", "--edge", "draft", "--count"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert f"{CLAUDE}: 900 tokens, counted by its provider" in err
    assert any(line.startswith(f"{OWN}: ") and "tokens, at most. Nobody counts" in line for line in err)
    (sent,) = server.counted
    assert "kernels that replace one callable" not in json.dumps(sent["body"])
    assert "[key]" in sent["body"]["system"][0]["text"]
    assert main.main(["prompt", "--edge", "draft", "--count", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tokens"]
    assert found[CLAUDE] == {"tokens": 900, "exact": True, "why": ""}
    assert found[OWN]["tokens"] > 900


def test_a_fault_is_told_and_none(here: Path, server: FaultServer, capsys: Captured) -> None:
    """The prompt and its bound are there all the same."""
    server.count = always(Play(kind="401", message="no {key}"))
    a_session(here, proposers=(CLAUDE,), api_base=server.base)
    assert main.main(["prompt", "--edge", "draft", "--count"]) == 0
    found = capsys.readouterr()
    assert "# Target: RMSNorm" in found.out
    assert "tokens, at most. The count of tokens did not come: " in found.err
    assert "refused the key (401)" in found.err
    assert KEY not in found.err


def test_nothing_is_sent_before_somebody_agreed(here: Path, capsys: Captured) -> None:
    """As for a run; without the option nobody is asked."""
    a_session(here, proposers=(CLAUDE,))
    assert main.main(["prompt", "--edge", "draft"]) == 0
    assert main.main(["prompt", "--edge", "draft", "--count"]) == 2
    assert "is asked at api.anthropic.com, and nobody has agreed to send it this model's source" in \
        capsys.readouterr().err  # fmt: skip
    assert main.main(["prompt", "--edge", "draft", "--count", "--local-only"]) == 2
    assert "which is not this machine" in capsys.readouterr().err


def test_a_session_without_models_has_nothing_to_count(here: Path, capsys: Captured) -> None:
    """Said in a sentence."""
    a_session(here)
    assert main.main(["prompt", "--edge", "draft", "--count"]) == 0
    assert "The session asks no model whose tokens could be counted." in capsys.readouterr().err
