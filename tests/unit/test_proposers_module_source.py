"""How much of the model's Python source a prompt shows."""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from forge_tui.core.ports import Task
from forge_tui.core.records import Edge, ModelSpec, RunOptions
from forge_tui.models.callables import module_source_of
from forge_tui.proposers import prompt, trial
from forge_tui.proposers.tokens import count
from forge_tui.search import simulate

WORD = "a_word_of_the_file_alone"


class Twice(nn.Module):
    """A module of this file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double it."""
        return x * 2


def asked(send_source: str, module_source: str) -> prompt.Prompt:
    """The prompt for a target whose file has this source."""
    options = RunOptions(model=ModelSpec(text="m", path="m.py"), device="cpu", workspace="",
                         send_source="module" if send_source == "module" else "callable")  # fmt: skip
    target = msgspec.structs.replace(simulate.target("t"), source="def t(x): ...", module_source=module_source)
    task = Task(target=target, device=simulate.DEVICE, edge=Edge.DRAFT, parent=None, failed=None, best=None,
                lineage=(), nodes=(), seed=1)  # fmt: skip
    return prompt.render(task, trial.checked_book(options))


def test_the_file_is_shown_only_where_a_person_says_so() -> None:
    """The callable's own source is there in both cases; the file has a cap of its own."""
    for way, there in (("callable", False), ("module", True)):
        card = asked(way, f"{WORD} = 1\n").card
        assert "def t(x): ..." in card
        assert (WORD in card) is there
    long = asked("module", "x = 1  # and so on\n" * 20_000).card
    assert count(long) - count(asked("callable", "").card) < 2600
    assert "forge_target.h" in long


def test_pytorchs_own_files_are_not_taken_along() -> None:
    """They are news to nobody; a file of the user's is read as it is."""
    found = module_source_of(Twice())
    assert WORD in found
    assert "class Twice" in found
    assert module_source_of(nn.Linear(1, 1)) == ""
    assert module_source_of(torch.nn.functional.silu) == ""
    assert len(module_source_of(Twice(), 100)) < 120
