"""Device names as the user types them, turned into a device that is there."""

from __future__ import annotations

import re

import torch

from forge_tui.core.errors import EnvironmentFault, UsageError

_NAME = re.compile(r"cpu|cuda(:\d+)?")


def resolve_device(name: str) -> torch.device:
    """The device that `cpu`, `cuda` or `cuda:N` names; `cuda` is `cuda:0`.

    Raises:
        UsageError: the name is none of these.
        EnvironmentFault: there is no such device here.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a device.", "Write cpu, cuda or cuda:N.")
    if name == "cpu":
        return torch.device("cpu")
    index = int(name.partition(":")[2] or 0)
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else ", and this PyTorch is built without CUDA"
        raise EnvironmentFault(f"There is no CUDA device here{built}.", "Use --device cpu; forge-tui doctor says more.")
    count = torch.cuda.device_count()
    if index >= count:
        there = ", ".join(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count))
        raise EnvironmentFault(f"There is no device {name} here.", f"There are cpu and {there}.")
    return torch.device("cuda", index)
