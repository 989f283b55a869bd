"""The verification stage, in the process that runs the kernel: runs it under conditions that dishonest kernels dislike.

What is found here (writes outside, changed inputs) is one half; the outputs go to the judge, which is the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forge_tui.core.records import Record, Signature
from forge_tui.evaluator.buffers import AROUND, POISONS, Guarded, bytes_spec
from forge_tui.evaluator.exchange import OutputFile
from forge_tui.evaluator.sets import InputSet
from forge_tui.launch.kernel import Kernel

_ALLOCATION_ALIGN = 16


class Run(Record, frozen=True, kw_only=True):
    """One run whose outputs the judge is to look at."""

    which: InputSet
    slot: int
    poison: int
    condition: str = ""
    """What was special, for sentences: `with equal inputs at other addresses`."""


class Dishonest(Exception):
    """What the kernel did that it must not; a whole sentence."""


@dataclass(slots=True)
class _Bank:
    """One set of buffers: all that a call gets."""

    inputs: list[Guarded]
    outputs: list[Guarded]
    workspace: Guarded | None


class Verifier:
    """Runs one kernel on input sets in two banks of guarded buffers."""

    def __init__(self, kernel: Kernel, signature: Signature, device: torch.device, outputs: OutputFile) -> None:
        self._kernel = kernel
        self._signature = signature
        self._outputs = outputs
        # on the CPU the second bank ends at pages without access, which catches reads as well
        self._banks = [self._bank(device, fenced=n == 1 and device.type == "cpu") for n in range(2)]
        self._runs: list[Run] = []
        self._held: tuple[_Bank, list[Tensor]] | None = None

    def _bank(self, device: torch.device, *, fenced: bool) -> _Bank:
        size = self._kernel.plan.workspace_bytes
        return _Bank(
            [Guarded(i.spec, i.align, device, fenced=fenced) for i in self._signature.inputs],
            [Guarded(o.spec, _ALLOCATION_ALIGN, device, fenced=fenced) for o in self._signature.outputs],
            Guarded(bytes_spec(size), _ALLOCATION_ALIGN, device, fenced=fenced) if size else None,
        )

    def run(self, sets: Sequence[InputSet], values: Callable[[InputSet], list[Tensor]]) -> list[Run]:
        """Run every set, the first one several times; returns the runs whose outputs were written down.

        Raises:
            Dishonest: the kernel wrote where it must not.
            LaunchError: it failed.
        """
        first = sets[0]
        first_values = values(first)
        baseline = self._take(0, first, first_values, POISONS[0])
        again = self._take(0, first, first_values, POISONS[1], baseline, "with other contents in outputs and workspace")
        for number, which in enumerate(sets[1:], start=1):
            # neighbouring sets use different banks, every second one the same pointers with other data
            self._take(number % 2, which, values(which), POISONS[number // 2 % 2])
        self._take(1, first, first_values, POISONS[0], again, "with equal inputs at other addresses")
        for poison in POISONS:
            self._take(0, first, first_values, poison, again, "when it is run again")
        return self._runs

    def _take(
        self, bank_number: int, which: InputSet, values: Sequence[Tensor], poison: int,
        same_as: list[Tensor] | None = None, condition: str = "",
    ) -> list[Tensor]:  # fmt: skip
        """One run; written down unless the outputs equal `same_as` bit by bit."""
        bank = self._banks[bank_number]
        if self._held is not None and self._held[0] is bank:
            self._held = None
        self._call(bank, values, poison)
        self._check_held()
        bits = [b.tensor.contiguous().reshape(-1).view(torch.uint8) for b in bank.outputs]
        copies = [t.clone() for t in bits]
        self._held = (bank, copies)
        if same_as is None or not all(torch.equal(a, b) for a, b in zip(copies, same_as, strict=True)):
            slot = len(self._runs)
            self._outputs.write(slot, [b.tensor for b in bank.outputs])
            self._runs.append(Run(which=which, slot=slot, poison=poison, condition=condition))
        return copies

    def _call(self, bank: _Bank, values: Sequence[Tensor], poison: int) -> None:
        for buffer, value in zip(bank.inputs, values, strict=True):
            buffer.set_values(value, AROUND[poison])
        before = [b.raw.clone() for b in bank.inputs]
        for buffer in bank.outputs:
            buffer.poison(poison)
        if bank.workspace is not None:
            bank.workspace.poison(AROUND[poison])
        self._kernel.launch(
            [b.tensor for b in bank.inputs], [b.tensor for b in bank.outputs],
            bank.workspace.tensor if bank.workspace is not None else None,
        )  # fmt: skip
        self._kernel.synchronize()
        self._check_inputs(bank, before)
        for buffer, item in zip(bank.outputs, self._signature.outputs, strict=True):
            self._check_guard(buffer, item.name, poison)
        if bank.workspace is not None:
            self._check_guard(bank.workspace, "workspace", AROUND[poison])

    def _check_inputs(self, bank: _Bank, before: Sequence[Tensor]) -> None:
        for buffer, copy, item in zip(bank.inputs, before, self._signature.inputs, strict=True):
            where = buffer.damage(copy)
            if where == "inside":
                raise Dishonest(f"It changes its input {item.name}; inputs must stay as they are.")
            if where:
                raise Dishonest(f"It writes {where} {item.name}, an input.")

    @staticmethod
    def _check_guard(buffer: Guarded, name: str, poison: int) -> None:
        where = buffer.guard_damage(poison)
        if where == "between":
            raise Dishonest(f"It writes between the elements of {name}: the strides are not followed.")
        if where:
            edge = "start" if where == "before" else "end"
            raise Dishonest(f"It writes {where} the {edge} of {name}, out of bounds.")

    def _check_held(self) -> None:
        if self._held is None:
            return
        bank, copies = self._held
        for buffer, copy, item in zip(bank.outputs, copies, self._signature.outputs, strict=True):
            if not torch.equal(buffer.tensor.contiguous().reshape(-1).view(torch.uint8), copy):
                raise Dishonest(f"It writes into {item.name} of an earlier call, which it no longer owns.")
