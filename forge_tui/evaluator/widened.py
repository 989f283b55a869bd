"""A callable run in float64 although it was written for narrower types.

Its casts are widened, and an operation that has no float64 form runs alone in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_WIDER = {**dict.fromkeys(_NARROW, torch.float64), torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)
#: what an operation without a float64 kernel is tried with, one after the other
_FALLBACKS = (torch.float32, torch.bfloat16, torch.float16)
#: reasons are for one line
_REASON_CHARS = 80


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The type that an operation ran in instead of float64, and why."""

    dtype: torch.dtype
    why: str


@contextmanager
def widened() -> Iterator[dict[str, Narrowed]]:
    """Within, floating tensors are made and cast to as float64; gives the operations that were not, with the reason."""
    before = torch.get_default_dtype()
    narrowed: dict[str, Narrowed] = {}
    torch.set_default_dtype(torch.float64)
    try:
        with _Widen(narrowed):
            yield narrowed
    finally:
        torch.set_default_dtype(before)


def words(narrowed: Mapping[str, Narrowed]) -> str:
    """`float32 is the reference of softmax (RuntimeError: ...)`, or nothing."""
    parts = []
    for dtype in dict.fromkeys(one.dtype for one in narrowed.values()):
        of = ", ".join(f"{name} ({one.why})" for name, one in narrowed.items() if one.dtype is dtype)
        parts.append(f"{_dtype(dtype)} is the reference of {of}")
    return "; ".join(parts)


class _Widen(TorchFunctionMode):
    """Turns casts to narrower floating types into casts to float64."""

    def __init__(self, narrowed: dict[str, Narrowed]) -> None:
        super().__init__()
        self._narrowed = narrowed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CASTS:
            return args[0].double()
        if func is Tensor.view:
            form = kwargs.get("dtype", args[-1])
            if isinstance(form, torch.dtype):
                return self._reinterpreted(args[0], form)
        args, kwargs = pytree.tree_map(_wide_dtype, (args, kwargs))
        try:
            result = func(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever an operation says of float64
            return self._without_float64(func, args, kwargs, error)
        return self._widened_result(func, args, kwargs, result)

    def _reinterpreted(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Bits read under another type of four bytes are those of float32, in and out."""
        if tensor.dtype is torch.float64 and not dtype.is_floating_point and dtype.itemsize == 4:
            self._narrowed.setdefault("view", Narrowed(torch.float32, "it reads the bits of float32"))
            return tensor.float().view(dtype)
        seen = tensor.view(dtype)
        return seen.double() if dtype is torch.float32 and not tensor.is_floating_point() else seen

    def _without_float64(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """Constants of the callable's own may be narrower; else each kernel in it by itself; else all of it."""
        wide = pytree.tree_map(_wide_tensor, (args, kwargs))
        if any(a is not b for a, b in zip(pytree.tree_leaves((args, kwargs)), pytree.tree_leaves(wide), strict=True)):
            try:
                return func(*wide[0], **wide[1])
            except Exception:  # noqa: BLE001
                args, kwargs = wide
        inner: dict[str, Narrowed] = {}
        try:
            with _EachKernel(inner):
                result = func(*args, **kwargs)
        except Exception:  # noqa: BLE001
            result, dtype = _narrowly(func, args, kwargs, error)
            inner = {_name(func): Narrowed(dtype, _why(error))}
        for name, one in inner.items():
            self._narrowed.setdefault(name, one)
        return result

    def _widened_result(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """What gives float32 for float64 by itself was computed in float32; a view of something narrower was not."""
        found = [r for r in pytree.tree_leaves(result) if isinstance(r, Tensor) and r.dtype in _NARROW]
        if not found:
            return result
        given = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        if not any(a.dtype is torch.float64 for a in given):
            return result
        name = _name(func)
        if not name.endswith("_") and "out" not in kwargs:
            known = {_storage(a) for a in given}
            found = [r for r in found if _storage(r) not in known]
        if not found:
            return result
        dtype = found[0].dtype
        self._narrowed.setdefault(name, Narrowed(dtype, f"it gives {_dtype(dtype)} by itself"))
        return pytree.tree_map(_wide_tensor, result)


class _EachKernel(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs the kernels that have no float64 form in float32."""

    supports_higher_order_operators = True

    def __init__(self, narrowed: dict[str, Narrowed]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._narrowed = narrowed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            result, dtype = _narrowly(func, args, kwargs, error)
            self._narrowed.setdefault(_name(func), Narrowed(dtype, _why(error)))
            return result


def _narrowly(func: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> tuple[Any, torch.dtype]:
    """One operation on narrower copies of its tensors, the results and what it wrote as float64; and their type.

    Raises:
        Exception: the one given, where no narrower type helps.
    """
    for dtype in _FALLBACKS:
        copies: list[tuple[Tensor, Tensor]] = []

        def narrow(value: Any, to: torch.dtype = dtype, made: Any = copies) -> Any:
            if value is torch.float64:
                return to
            if not isinstance(value, Tensor) or value.dtype is not torch.float64:
                return value
            copy = value.to(to)
            made.append((value, copy))
            return copy

        few, named = pytree.tree_map(narrow, (args, kwargs))
        if not copies:
            break
        try:
            result = func(*few, **named)
        except Exception:  # noqa: BLE001, S112
            continue
        for value, copy in copies:
            # an operation may write without saying so; what it left alone keeps its float64
            if not torch.equal(copy, value.to(dtype)):
                value.copy_(copy)
        originals = {id(copy): value for value, copy in copies}
        return pytree.tree_map(lambda v, known=originals: known.get(id(v), _wide_tensor(v)), result), dtype
    raise error


def _wide_dtype(value: Any) -> Any:
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _wide_tensor(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype in _NARROW else value


def _storage(tensor: Tensor) -> int:
    """What tells the memory of a tensor from that of others."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)  # noqa: SLF001


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _name(func: Any) -> str:
    """`scaled_dot_product_attention`, `aten._softmax`: short, without overload."""
    if isinstance(func, torch._ops.OpOverload):  # noqa: SLF001
        return str(func.overloadpacket)
    name: str = resolve_name(func) or getattr(func, "__qualname__", str(func))
    return name.rpartition(".")[2]


def _why(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    text = text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS].rpartition(" ")[0] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
