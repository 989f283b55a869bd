"""What the README tells people to type works as it is written there."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forge_tui.cli import settings
from forge_tui.core.paths import Workspace

README = (Path(__file__).parents[2] / "README.md").read_text()
#: what keeps a run short; everything else is as the README has it
SHORT = ["--headless", "--minutes", "0.2", "--evaluations", "1", "--targets", "1", "--no-compile-baseline"]
#: run by other tests: make targets by CI, the screen by tests/terminal, installation and compilation are too long here
ELSEWHERE = {
    "make demo", "make test", "forge-tui", "pip install 'forge-tui[hf]'", "forge-tui run example:resnet",
    "forge-tui record model.py --target LayerNorm --output norm.landscape",
    "forge-tui profile model.py --what-if", "forge-tui profile model.py --baselines",
}  # fmt: skip
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2,
          "vocab_size": 100}  # fmt: skip
EXTRA = """

def make_it():
    return torch.nn.LayerNorm(512), (torch.randn(64, 512),)

def lengths():
    for length in (16, 32):
        yield (torch.randn(4, length, 512),)
"""


def commands() -> list[str]:
    """Every command of the README's shell blocks, without comments."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line.strip()]


def forge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder."""
    return subprocess.run([sys.executable, "-m", "forge_tui", *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=200, check=False)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the README's commands speak of: its model, a configuration, inputs, a kernel, and a session."""
    where = tmp_path_factory.mktemp("readme")
    (where / "model.py").write_text(re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0] + EXTRA)
    (where / "config.json").write_text(json.dumps(CONFIG))
    save_file({"0/input": torch.randn(2, 16, 512), "1/input": torch.randn(2, 32, 512)}, where / "inputs.safetensors")
    header = forge(where, "check", "model.py", "--target", "LayerNorm", "--print-header")
    assert header.returncode == 0, header.stderr
    (where / "kernel.cpp").write_text(header.stdout)
    return where


def test_every_command_is_run_somewhere():
    """A command that is said to be run by other tests stands in the README."""
    assert {shlex.join(shlex.split(text)) for text in ELSEWHERE} <= set(commands())


@pytest.mark.parametrize("command", [c for c in commands() if c not in {shlex.join(shlex.split(e)) for e in ELSEWHERE}])
def test_command(folder, command):
    """It ends as it should; a profile names its targets, a run writes a session, a check gives its verdict."""
    program, *arguments = shlex.split(command)
    assert program == "forge-tui"
    if arguments[0] == "run":
        arguments += SHORT
    if arguments[0] in ("resume", "report", "cost") and not (folder / ".forge" / "forge.db").exists():
        forge(folder, "run", "model.py", *SHORT)
    if "SESSION" in arguments:
        sessions = json.loads(forge(folder, "sessions", "--json").stdout)
        arguments = [sessions["sessions"][0]["id"] if a == "SESSION" else a for a in arguments]
    if arguments[0] == "resume":
        arguments += ["--headless", "--evaluations", "3", "--minutes", "1"]
    done = forge(folder, *arguments)
    allowed = {"run": (0, 5), "resume": (0, 5), "check": (0, 6)}.get(arguments[0], (0,))
    assert done.returncode in allowed, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    if arguments[0] == "profile":
        assert "signature" in done.stdout
    elif arguments[0] == "doctor":
        assert "PyTorch" in done.stdout
    else:
        assert done.stdout.strip()


def test_the_config_file_of_the_readme_is_one(tmp_path, monkeypatch):
    """Every key of it is known, and means what the README says."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    place = Workspace(tmp_path / ".forge")
    place.root.mkdir()
    (place.root / "config.toml").write_text(text)
    found = settings.load(place, {}, {})
    assert found.run.model == ("anthropic/claude-opus-4-8", "openai/qwen")
    assert found.run.usd == 5
    assert found.models["openai/qwen"].price == (0, 0)
