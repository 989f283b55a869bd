"""Targets made from one call, and a small model to measure, for the tests of what-ifs and baselines."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge_tui.core.records import ModelSpec, Signature, Target
from forge_tui.models.callables import closure_tensors, find_function
from forge_tui.models.calls import describe_call, describe_result
from forge_tui.models.load import LoadedModel, load_model

MODEL = '''
"""A small model with a norm, a rotation by name and in a table, and a softmax imported by name."""
import time
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import softmax

def rotate(x, cos, *, scale=1.0):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1) * cos * scale, x.mean(-1)

TABLE = {"rotate": rotate}

class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.5))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = Norm(size)
        self.linear = nn.Linear(size, size)

    def forward(self, x):
        turned, mean = TABLE["rotate"](self.norm(x), torch.ones(x.shape[-1]), scale=0.5)
        return x + softmax(F.gelu(self.linear(turned)), dim=-1) + mean[..., None]

class Model(nn.Module):
    def __init__(self, size=8, layers=2):
        super().__init__()
        self.layers = nn.ModuleList([Layer(size) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def build():
    return Model(), (torch.randn(3, 5, 8),)
'''


def write_model(folder: Path, text: str = MODEL, name: str = "model.py") -> ModelSpec:
    """The file, and its spec."""
    path = folder / name
    path.write_text(text)
    return ModelSpec(text=str(path), path=str(path))


def loaded_model(folder: Path, text: str = MODEL) -> LoadedModel:
    """The model of a file, on the CPU."""
    return load_model(write_model(folder, text), "cpu")


def target_of(
    qualname: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, module: nn.Module | None = None,
    instances: tuple[str, ...] = (), floor_us: float = 0.0, name: str = "",
) -> Target:  # fmt: skip
    """The target of one call of a function (`module:name`), or of a module's forward."""
    kwargs = kwargs or {}
    fn: Callable[..., Any] = module.forward if module is not None else find_function(qualname)
    closure = closure_tensors(fn) if module is None else None
    with torch.no_grad():
        call = describe_call(fn, args, kwargs, module, closure)
        result = describe_result(fn(*args, **kwargs), call.tensors)
    signature = Signature(inputs=call.inputs, outputs=result.outputs, scalars=call.scalars, call=call.call,
                          result=result.result, device=str(call.tensors[0].device))  # fmt: skip
    kind = "module" if module is not None else "torch" if qualname.startswith("torch.") else "function"
    name = name or qualname.partition(":")[2]
    return Target(id=f"id-{name}", name=name, kind=kind, qualname=qualname, instances=instances, signature=signature,
                  calls=1, time_us=100.0, share=0.5, floor_us=floor_us, bound="memory", headroom_ms=1.0, bytes_moved=1,
                  flops=0)  # fmt: skip


def norm_target(loaded: LoadedModel, **more: Any) -> Target:
    """The norms of the small model."""
    norm = loaded.module.get_submodule("layers.0.norm")
    paths = tuple(path for path, m in loaded.module.named_modules() if type(m).__name__ == "Norm")
    return target_of(f"{type(norm).__module__}:Norm", (torch.randn(3, 5, 8),), module=norm, instances=paths,
                     name="Norm", **more)  # fmt: skip


def rotate_target(loaded: LoadedModel, **more: Any) -> Target:
    """The rotation of the small model, which it calls through a table."""
    arguments = (torch.randn(3, 5, 8), torch.ones(8))
    return target_of(f"{loaded.source.__name__}:rotate", arguments, {"scale": 0.5}, **more)


def softmax_target(**more: Any) -> Target:
    """The softmax of the small model, which it has imported by name."""
    return target_of("torch.nn.functional:softmax", (torch.randn(3, 5, 8),), {"dim": -1}, **more)


def module_with(name: str, **functions: Callable[..., Any]) -> types.ModuleType:
    """A Python module of this name with these functions in its namespace, in `sys.modules`."""
    module = types.ModuleType(name)
    vars(module).update(functions)
    sys.modules[name] = module
    return module
