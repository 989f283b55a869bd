"""What happens inside a call, seen at the dispatcher: writes, random numbers, reads of other tensors, matrix work."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from forge_tui.models.strided import real_elements
from forge_tui.models.trees import dtype_name
from forge_tui.profiler.launches import hear_triton

_LIFT = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}
#: operators that read those rows of their first argument that are asked for
_GATHER = {"embedding", "index", "index_select", "gather", "take", "_embedding_bag", "_embedding_bag_forward_only",
           "_unsafe_index"}  # fmt: skip


@dataclass(slots=True)
class Frame:
    """One open call and what was seen inside it so far."""

    since: int
    """Number of the first operation that belongs to it."""
    storages: set[int]
    """Storages of its inputs, parameters included."""
    reason: str = ""
    """Why it cannot be a target; the first one found stays."""
    foreign: dict[int, Tensor] = field(default_factory=dict)
    """Tensors that it reads and that are neither its inputs nor made inside, by storage."""
    flops: Counter[str] = field(default_factory=Counter)
    """Matrix work by dtype."""
    matrix_calls: int = 0
    touched: Counter[int] = field(default_factory=Counter)
    """Bytes that its operations read of each input storage, repeated reads counted each time."""

    def refuse(self, reason: str) -> None:
        """Keep the first reason."""
        self.reason = self.reason or reason


def storage_of(tensor: Tensor) -> int:
    """Identity of the memory a tensor looks at."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every operation for all open frames."""

    #: `cond`, `flex_attention`: they would raise under a mode that does not say so
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.frames: list[Frame] = []
        self._born: dict[int, int] = {}
        self._count = itertools.count(1)
        self._hearing = contextlib.ExitStack()
        self.now = 0

    def open(self, tensors: Sequence[Tensor]) -> Frame:
        """A call begins with these tensors as its inputs."""
        frame = Frame(since=self.now + 1, storages={storage_of(t) for t in tensors})
        self.frames.append(frame)
        return frame

    def close(self) -> Frame:
        """The innermost call ended."""
        return self.frames.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - what runs here is no call of the model's Python code
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):  # noqa: SLF001
            result = func(*args, **kwargs)
            self.unseen((args, kwargs), result, f"it calls {func.__name__}, whose inside is not seen")
            return result
        self.now = next(self._count)
        leaves = pytree.tree_leaves((args, kwargs))
        read = [t for t in leaves if _plain(t)]
        known = {storage_of(t) for t in read}
        if func in _LIFT:  # torch.tensor(...): its storage is made outside the dispatcher
            for storage in known:
                self._born[storage] = self.now
        if self.frames:
            if any(isinstance(leaf, torch.ScriptObject) for leaf in leaves):
                self._refuse_all("it reads a packed object of torch, whose content a kernel cannot see")
            self._reads(read)
            self._writes(func, args, kwargs)
            self._data(func)
        tags = getattr(func, "tags", ())
        random = self.frames and torch.Tag.nondeterministic_seeded in tags
        before = _random_states(read) if random else []
        result = func(*args, **kwargs)
        if random and not _equal(before, _random_states(read)):
            for frame in self.frames:
                frame.refuse("it draws random numbers")
        self._born_in(result, known)
        if self.frames:
            self._touches(func, args, kwargs, result)
            self._work(func, args, kwargs, result)
        return result

    def unseen(self, given: Any, result: Any, reason: str) -> None:
        """A call ran without being watched: what it was given was read, and its result is new."""
        self.now = next(self._count)
        read = [t for t in pytree.tree_leaves(given) if _plain(t)]
        self._read_whole(read)
        self._born_in(result, {storage_of(t) for t in read})
        self._refuse_all(reason)

    def _read_whole(self, tensors: Sequence[Tensor]) -> None:
        self._reads(tensors)
        for tensor in tensors:
            for frame in self.frames:
                if (storage := storage_of(tensor)) in frame.storages:
                    frame.touched[storage] += _real_bytes(tensor)

    def _launched(self, given: Any) -> None:
        """A Triton kernel is launched, which the dispatcher does not see."""
        self.now = next(self._count)
        self._read_whole([t for t in pytree.tree_leaves(given) if _plain(t)])

    def __enter__(self) -> Self:
        self._hearing.enter_context(hear_triton(self._launched))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hearing.close()

    def _born_in(self, result: Any, known: set[int]) -> None:
        """Note the new storages of a result."""
        for t in pytree.tree_leaves(result):
            if _plain(t) and storage_of(t) not in known:
                self._born[storage_of(t)] = self.now

    def _touches(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        returns = func._schema.returns  # noqa: SLF001
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return  # a view reads nothing
        name = func._schema.name.partition("::")[2]  # noqa: SLF001
        if name.endswith("_like") or name.startswith("new_"):
            return  # only the form of the argument is looked at
        gathers = name in _GATHER
        most = sum(_real_bytes(t) for t in pytree.tree_leaves(result) if _plain(t))
        for position, tensor in enumerate(t for t in pytree.tree_leaves((args, kwargs)) if _plain(t)):
            size = _real_bytes(tensor)
            if gathers and position == 0:
                size = min(size, most)  # of a table it reads the rows that are asked for
            for frame in self.frames:
                if (storage := storage_of(tensor)) in frame.storages:
                    frame.touched[storage] += size

    def _reads(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            storage = storage_of(tensor)
            born = self._born.get(storage, 0)
            for frame in self.frames:
                if born < frame.since and storage not in frame.storages:
                    frame.foreign.setdefault(storage, tensor)

    def _writes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not func._schema.is_mutable:  # noqa: SLF001
            return
        for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in pytree.tree_leaves(value):
                if not _plain(tensor):
                    continue
                storage = storage_of(tensor)
                for frame in self.frames:
                    if storage in frame.storages:
                        frame.refuse("it writes into one of its inputs")
                    elif self._born.get(storage, 0) < frame.since:
                        frame.refuse("it writes into a tensor that it did not make")

    def _data(self, func: Any) -> None:
        tags = getattr(func, "tags", ())
        if torch.Tag.dynamic_output_shape in tags:
            self._refuse_all("the shape of a result depends on values")
        elif torch.Tag.data_dependent_output in tags:
            self._refuse_all("Python code in it depends on the values of a tensor")

    def _refuse_all(self, reason: str) -> None:
        for frame in self.frames:
            frame.refuse(reason)

    def _work(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        count = flop_registry.get(getattr(func, "_overloadpacket", None))
        leaves = [t for t in pytree.tree_leaves(result) if _plain(t)]
        if count is not None:
            try:
                flops = int(count(*args, **kwargs, out_val=result))
            except Exception:  # noqa: BLE001 - torch's formulas assert forms that not every operator keeps
                flops = 0
        elif "scaled_dot_product" in str(func):  # the CPU's and newer back ends are not in torch's table
            query, key, value = args[:3]
            flops = 2 * query.numel() * key.shape[-2] + 2 * query.numel() // query.shape[-1] * value.numel() // (
                value.shape[0] * value.shape[1]
            )
        else:
            return
        if "scaled_dot_product" in str(func) and _argument(func, args, kwargs, "is_causal"):
            flops //= 2  # half of the scores are masked
        operands = [t for t in pytree.tree_leaves((args, kwargs)) if _plain(t)]
        rate = _rate(func, operands or leaves)
        for frame in self.frames:
            frame.matrix_calls += 1
            frame.flops[rate] += flops


def _argument(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """The value of a named argument of an operator, or None."""
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name)
    return None


def _rate(func: Any, tensors: Sequence[Tensor]) -> str:
    """The name of the matrix rate that an operator runs at: the operands' dtype, or TF32 where PyTorch may use it."""
    if not tensors:
        return "float32"
    dtype = dtype_name(tensors[0].dtype)
    if dtype != "float32" or tensors[0].device.type != "cuda":
        return dtype
    try:
        allowed = torch.backends.cudnn.allow_tf32 if "conv" in str(func) else torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # the model set precisions by the newer switches, which the older ones refuse to read
        allowed = True
    return "tf32" if allowed else dtype


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def _real_bytes(tensor: Tensor) -> int:
    return real_elements(tensor.shape, tensor.stride()) * tensor.element_size()


def _random_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    states = [torch.get_rng_state()]
    devices = {t.device for t in tensors if t.device.type == "cuda"}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # what draws numbers may read no tensor at all
        devices.add(torch.device("cuda", torch.cuda.current_device()))
    states += [torch.cuda.get_rng_state(d) for d in devices]
    return states


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
