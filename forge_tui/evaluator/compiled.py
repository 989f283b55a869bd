"""The original compiled by torch: the other baseline of a timing.

On CUDA `torch.compile` works in the process that times. On the CPU that process forks its candidates before OpenMP has
started, so nothing may be compiled or run in it: another process compiles ahead of time into a package, which is only
loaded there, in milliseconds.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from forge_tui.core.records import Target
from forge_tui.evaluator.opened import Targets
from forge_tui.models.load import LoadedModel
from forge_tui.models.resolve import caller
from forge_tui.processes.wire import fds_from_argv, serve

Call = Callable[[Sequence[Tensor]], list[Tensor]]
_numbers = itertools.count()


def compile_here(target: Target, loaded: LoadedModel) -> Call:
    """The target's callable through `torch.compile` with default settings; the first call compiles."""
    return caller(target, loaded, wrap=lambda run: torch.compile(_own_code(run), dynamic=False))


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with a code object of its own, by which torch keeps what it compiled: targets share no cache."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_filename=f"<forge baseline {next(_numbers)}>")
    return types.FunctionType(code, call.__globals__, "call", None, call.__closure__)


class _Flat(torch.nn.Module):
    """A target's callable with its tensors as arguments."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._call(tensors))


def package(call: Call, example: Sequence[Tensor], path: Path) -> None:
    """Compile a callable for inputs of this form, for as many threads as torch has now, into a file.

    Raises:
        Exception: whatever torch cannot export or compile.
    """
    from torch._inductor import aoti_compile_and_package

    with torch.no_grad():
        program = torch.export.export(_Flat(call), tuple(example), strict=False)
        part = path.with_name(f"part-{path.name}")
        aoti_compile_and_package(program, package_path=str(part))
    part.replace(path)


def load_package(path: Path) -> Call:
    """What `package` made; loading runs nothing."""
    loader = getattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader", None)  # noqa: SLF001
    try:
        if loader is None:
            raise TypeError("an older torch")
        # without the compiler around it, which takes seconds to import
        run = loader(str(path), "model", False, 1, -1).run
    except TypeError:
        from torch._inductor import aoti_load_package

        run = aoti_load_package(str(path)).loader.run
    return lambda tensors: list(run([*tensors]))


class Packager:
    """Answers `package`."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def package(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write a target's package, or say in `failure` why there is none."""
        opened = self._targets.open(message)
        if message["use_threads"]:
            torch.set_num_threads(message["use_threads"])
        try:
            package(opened.call, opened.captured[0], Path(message["package"]))
        except Exception as error:  # noqa: BLE001 - torch refuses much, in many ways
            return {"failure": why(error)}
        return {"failure": ""}


def why(error: Exception) -> str:
    """One line of what torch says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def main(argv: list[str]) -> None:
    """Serve until the engine goes."""
    settings = msgspec.json.decode(argv[argv.index("--settings") + 1])
    packager = Packager(Targets("cpu", Path(settings["artifacts"]), settings["seed"]))
    serve({"package": packager.package}, *fds_from_argv(argv))


if __name__ == "__main__":
    main(sys.argv)
