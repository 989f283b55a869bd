"""A kernel in the place of its original: served where the call is exactly the verified one, else the original.

Whatever is not known to be right is given back, counted by reason. The kernel gets the tensors as they are: nothing is
made contiguous, cast or moved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from forge_tui.core.records import LaunchPlan, Signature, Target
from forge_tui.deploy.ambient import is_compiling, obstacle
from forge_tui.deploy.forms import Form, make_form
from forge_tui.deploy.frozen import FrozenFunction, FrozenModule
from forge_tui.deploy.quick import Check, same_kind
from forge_tui.deploy.tally import Tally, Totals
from forge_tui.models.calls import rebuild_result

_MAX_FORMS = 64
_MAX_QUICK = 8


class Launchable(Protocol):
    """What the guard needs of a loaded kernel."""

    @property
    def plan(self) -> LaunchPlan:
        """Its workspace."""

    def launch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, stream: int | None = None
    ) -> None:
        """Run the kernel on the current stream, its workspace zeroed if it asks so; raises if it cannot be started."""


class Miss:
    """Why a kernel did not serve a call; never a result of a model's callable."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


_FORM: Final = Miss("arguments")
_TYPE: Final = Miss("tensor type")
_SUBCLASS: Final = Miss("tensor subclass")
_DTYPE: Final = Miss("dtype")
_SHAPE: Final = Miss("shape")
_STRIDES: Final = Miss("strides")
_DEVICE: Final = Miss("device")
_ALIGN: Final = Miss("alignment")
_LAYOUT: Final = Miss("layout")
_GRAD: Final = Miss("needs gradient")
_OFF: Final = Miss("kernel disabled")
_FAILED: Final = Miss("launch failed")
_MEMORY: Final = Miss("out of memory")
_COMPILING: Final = Miss("torch.compile")
_TENSORS: Final = frozenset({Tensor, nn.Parameter})


class _Expected:
    """What one tensor must be."""

    __slots__ = ("dtype", "shape", "strides")

    def __init__(self, signature: Signature, index: int) -> None:
        item = signature.inputs[index]
        self.dtype = getattr(torch, item.spec.dtype)
        self.shape = torch.Size(item.spec.shape)
        self.strides = tuple(item.spec.strides)

    def miss(self, tensor: Any, device: torch.device) -> Miss:
        """Which of the conditions the tensor breaks."""
        if not isinstance(tensor, Tensor):
            return _TYPE
        if type(tensor) not in _TENSORS:
            return _SUBCLASS
        if tensor.layout is not torch.strided or tensor.is_neg():
            return _LAYOUT
        if tensor.device != device:
            return _DEVICE
        if tensor.dtype is not self.dtype:
            return _DTYPE
        if tensor.shape != self.shape:
            return _SHAPE
        return _STRIDES


class GuardedKernel:
    """A verified kernel called in place of `original`, for one instance (`module`) or one function.

    `original` is the bound forward or the function itself. `kernel.launch` must be safe to call from several threads.
    """

    def __init__(
        self, target: Target, kernel: Launchable, original: Callable[..., Any], *, module: nn.Module | None = None
    ) -> None:
        signature = target.signature
        self.target = target
        self.fault = ""
        """What went wrong when a launch failed; the kernel is off since then."""
        self.original = original
        self._launch = kernel.launch
        self._signature = signature
        self._device = torch.device(signature.device or "cpu")
        self._on_cuda = self._device.type == "cuda"
        self._frozen: FrozenModule | FrozenFunction = (
            FrozenModule(module, signature) if module is not None else FrozenFunction(original, signature)
        )
        self._changed = self._frozen.changed
        self._off: Miss | None = Miss(self._frozen.misfit) if self._frozen.misfit else None
        self._slots = self._frozen.slots
        self._blank: list[Any] = [None] * len(signature.inputs)
        self._expected = tuple(_Expected(signature, i) for i in range(len(signature.inputs)))
        self._masks = tuple(item.align - 1 for item in signature.inputs)
        self._quick: Check | None = None
        self._quick_left = _MAX_QUICK
        self._forms: dict[Any, Form | None] = {}
        self._outputs = tuple((o.spec.shape, o.spec.strides, getattr(torch, o.spec.dtype)) for o in signature.outputs)
        self._result = _result_builder(signature)
        self._workspace_bytes = kernel.plan.workspace_bytes
        self._totals = Totals()
        self._tally = Tally(self._totals)
        self._fault_lock = threading.Lock()
        self._keep: list[tuple[tuple[Any, ...], dict[str, Any]]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's result where it may serve, else the original's."""
        if is_compiling():  # the first thing asked, so that torch.compile sees the original alone
            return self.original(*args, **kwargs)
        result = self.attempt(args, kwargs)
        if type(result) is Miss:
            self.count(result)
            return self.original(*args, **kwargs)
        return result

    def attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The kernel's result, or the `Miss` that says why the original must serve; a miss is not counted here."""
        if self._off is not None:
            return self._off
        reason = obstacle()
        if reason:
            return Miss(reason)
        key = (len(args), *kwargs) if kwargs else len(args)
        form = self._forms.get(key)
        if form is None:
            form = self._new_form(key, args, kwargs)
            if form is None:
                return _FORM
        tensors = self._blank.copy()
        if not form.take(args, kwargs, tensors):
            return _FORM
        reason = self._changed()
        if reason:
            return Miss(reason)
        for index, holder, name in self._slots:
            tensors[index] = holder.get(name)
        miss = self._refusal(tensors)
        return self._serve(tensors, args, kwargs) if miss is None else miss

    def _refusal(self, tensors: list[Any]) -> Miss | None:
        quick = self._quick
        if quick is None or not _passes(quick, tensors):
            miss = self._compare(tensors)
            if miss is not None:
                return miss
            if self._quick_left:
                # a few times only: callers that alternate between modes must not make one at every call
                self._quick_left -= 1
                self._quick = same_kind(tensors)
        for tensor, mask in zip(tensors, self._masks, strict=True):
            address = tensor.data_ptr()
            if not address or address & mask:
                return _ALIGN
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return _GRAD
        return None

    def _compare(self, tensors: list[Any]) -> Miss | None:
        """The first difference between the tensors and the signature's."""
        device = self._device
        for tensor, want in zip(tensors, self._expected, strict=True):
            if (
                type(tensor) not in _TENSORS
                or tensor.layout is not torch.strided
                or tensor.dtype is not want.dtype
                or tensor.shape != want.shape
                or tensor.stride() != want.strides
                or tensor.device != device
                or tensor.is_neg()
            ):
                return want.miss(tensor, device)
        return None

    def _serve(self, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = self._device
        tally = self._tally.mine
        workspace = None
        try:
            outputs = [torch.empty_strided(shape, strides, dtype=dtype, device=device)
                       for shape, strides, dtype in self._outputs]  # fmt: skip
            if self._workspace_bytes:
                workspace = self._workspace(tally.workspaces)
        except torch.OutOfMemoryError:
            return _MEMORY
        try:
            self._launch(tensors, outputs, workspace)
        except Exception as error:  # noqa: BLE001 - whatever a launch raises, the model goes on with the original
            return self._disable(error)
        tally.served += 1
        if self._keep is not None:
            self._keep.append((args, kwargs))
            self._keep = None
        return self._result(tensors, outputs)

    def _workspace(self, cached: dict[int, Tensor]) -> Tensor:
        """Scratch memory of this thread and stream; fresh while a CUDA graph is captured, which owns its memory."""
        stream = 0
        if self._on_cuda:
            if torch.cuda.is_current_stream_capturing():
                return self._new_workspace()
            stream = torch._C._cuda_getCurrentRawStream(self._device.index or 0)  # noqa: SLF001 - 20 times faster
        workspace = cached.get(stream)
        if workspace is None:
            workspace = cached[stream] = self._new_workspace()
        return workspace

    def _new_workspace(self) -> Tensor:
        return torch.empty(self._workspace_bytes, dtype=torch.uint8, device=self._device)

    def _new_form(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form | None:
        if key not in self._forms and len(self._forms) < _MAX_FORMS:
            self._forms[key] = make_form(self._signature, self.original, len(args), tuple(kwargs), self._device)
        return self._forms.get(key)

    def _disable(self, error: Exception) -> Miss:
        with self._fault_lock:
            if not self.fault:
                self.fault = f"{type(error).__name__}: {error}"
            self._off = _OFF
        return _FAILED

    def count(self, miss: Miss) -> None:
        """Note a call that the original serves."""
        fallbacks = self._tally.mine.fallbacks
        fallbacks[miss.reason] = fallbacks.get(miss.reason, 0) + 1

    def counts(self) -> tuple[int, dict[str, int]]:
        """Calls served by the kernel, and calls given back by reason; of all threads."""
        return self._totals.read()

    def reset(self) -> None:
        """Start counting anew; not while calls run."""
        self._totals.reset()

    def release(self) -> None:
        """Let go of the workspaces; not while calls run."""
        self._totals.release()

    def keep_next(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """A list that gets the arguments of the next call served."""
        kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._keep = kept
        return kept


def _passes(check: Check, tensors: list[Any]) -> bool:
    try:
        return check(*tensors)
    except TypeError:  # something that is no tensor
        return False


def _result_builder(signature: Signature) -> Callable[[list[Tensor], list[Tensor]], Any]:
    tree = signature.result
    if tree == {"out": 0}:
        return lambda _, outputs: outputs[0]
    if tree == {"tuple": [{"out": i} for i in range(len(signature.outputs))]}:
        return lambda _, outputs: tuple(outputs)
    return lambda inputs, outputs: rebuild_result(signature, inputs, outputs)
