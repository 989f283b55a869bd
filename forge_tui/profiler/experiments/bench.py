"""The worker's operations for baselines and what-ifs: a model is opened once, then measured row by row.

What a way to run the model raises goes back as an error reply; the client keeps it as the row's reason and goes on in
another process, since a failed compile or graph capture leaves this one in an unknown state.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from forge_tui.core.errors import ModelError
from forge_tui.core.records import ModelSpec, Target
from forge_tui.models import capture
from forge_tui.models.faults import explain
from forge_tui.models.load import LoadedModel, load_model
from forge_tui.profiler.experiments import standard
from forge_tui.profiler.experiments.baselines import ModelBaselines, TargetBaselines
from forge_tui.profiler.experiments.whatif import WhatIfBench

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class Bench:
    """One loaded model with what measures it."""

    def __init__(self) -> None:
        self._loaded: LoadedModel | None = None
        self._model: ModelBaselines | None = None
        self._what_ifs: dict[str, WhatIfBench] = {}
        self._target: tuple[str, TargetBaselines] | None = None

    def handlers(self) -> dict[str, Handler]:
        """The operations by name."""
        return {
            "open_model": self.open_model, "baseline": self.baseline, "target_baseline": self.target_baseline,
            "what_if": self.what_if,
        }  # fmt: skip

    def open_model(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer `open_model`: the standard settings that the model may take."""
        spec = msgspec.convert(message["spec"], ModelSpec)
        if message.get("threads"):
            torch.set_num_threads(message["threads"])
        self._loaded = loaded = load_model(spec, message["device"], message.get("seed", 0))
        try:
            loaded.run()
        except BaseException as error:
            raise explain(error, spec, f"The forward of {type(loaded.module).__name__} failed") from error
        return {"settings": standard.applicable(loaded, message.get("allow_tf32", False))}

    def baseline(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer `baseline`: one way to run the whole model."""
        if self._model is None:
            self._model = ModelBaselines(self._open())
        found = self._model.measure(message["way"], tuple(message["settings"]), message["budget_s"])
        return {"baseline": msgspec.to_builtins(found)}

    def target_baseline(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer `target_baseline`: one way to run one target's call."""
        target = msgspec.convert(message["target"], Target)
        if self._target is None or self._target[0] != target.id:
            self._target = None
            gc.collect()  # the inputs of the one before
            tensors = _captured(self._open(), target, Path(message["artifacts"]))
            self._target = (target.id, TargetBaselines(self._open(), target, tensors))
        return {"baseline": msgspec.to_builtins(self._target[1].measure(message["way"], message["budget_s"]))}

    def what_if(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer `what_if`: the model with some targets at their floor."""
        targets = [msgspec.convert(item, Target) for item in message["targets"]]
        mode = message["mode"]
        if mode not in self._what_ifs:
            self._what_ifs[mode] = WhatIfBench(self._open(), mode, launch_us=message["launch_us"])
        return {"what_if": msgspec.to_builtins(self._what_ifs[mode].measure(targets, message["budget_s"]))}

    def _open(self) -> LoadedModel:
        if self._loaded is None:
            raise ModelError("The model is not loaded.", "Profile it again.")
        return self._loaded


def _captured(loaded: LoadedModel, target: Target, artifacts: Path) -> list[Tensor]:
    """The inputs of the first captured call."""
    if not target.capture:
        raise ModelError(f"There are no captured inputs of {target.name}.", "Profile the model again.")
    return capture.load(artifacts / target.capture, 0, loaded.device, loaded)
