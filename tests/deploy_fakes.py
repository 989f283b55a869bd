"""Targets read off real calls, and kernels that compute with torch, for the tests of deployment."""

import torch
from torch import nn

from forge_tui.core.records import LaunchPlan, Signature, Target
from forge_tui.models.calls import describe_call, describe_result


class Norm(nn.Module):
    """Root mean square norm with a weight and a number."""

    def __init__(self, size=32, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(size))
        self.eps = eps

    def forward(self, x, gain=1.0):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight * gain


def norm_compute(inputs, outputs, eps=1e-6, gain=1.0):
    """What a kernel for `Norm` does."""
    x, weight = inputs
    outputs[0].copy_(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight * gain)


def make_target(fn, args, kwargs=None, *, module=None, kind="module", qualname="", instances=(), name="", closure=None):
    """The target that this call of `fn` (the bound forward of `module`) makes."""
    kwargs = kwargs or {}
    call = describe_call(fn, args, kwargs, module, closure)
    with torch.no_grad():
        result = describe_result(fn(*args, **kwargs), call.tensors)
    signature = Signature(inputs=call.inputs, outputs=result.outputs, scalars=call.scalars, call=call.call,
                          result=result.result, device=str(call.tensors[0].device))
    name = name or qualname or type(module).__name__
    return Target(id=f"t-{name}", name=name, kind=kind, qualname=qualname, instances=tuple(instances),
                  signature=signature, calls=1, time_us=1.0, share=0.1, floor_us=0.1, bound="memory", headroom_ms=1.0,
                  bytes_moved=1, flops=1)


def module_target(root, path, *args, **kwargs):
    """The target that a call of the root's module at `path` makes."""
    module = root.get_submodule(path)
    return make_target(module.forward, args, kwargs, module=module, instances=[path],
                       name=f"{type(module).__name__}@{path}")


class FakeKernel:
    """A kernel on the CPU in Python: `compute(inputs, outputs)`; counts its launches."""

    def __init__(self, compute, plan=None):
        self.compute = compute
        self.plan = plan or LaunchPlan()
        self.launches = 0
        self.workspaces = []
        self.fail = None

    def launch(self, inputs, outputs, workspace, stream=None):
        """Compute, or raise `fail`."""
        if self.fail is not None:
            raise self.fail
        with torch.no_grad():
            self.compute(inputs, outputs)
        self.launches += 1
        self.workspaces.append(workspace)
