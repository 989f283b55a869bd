"""Functions and a model as a user's file would have them, for the tests of patching."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import silu as swish


def scale(x, by=2.0):
    """A function of the model's file."""
    return x * by


def twice(x):
    """Calls another target."""
    return scale(x) + scale(x)


class Ops:
    """A namespace of functions."""

    @staticmethod
    def shift(x):
        return x + 1.0


class Model(nn.Module):
    """Norms, functions, and functions of torch, called in every way there is."""

    def __init__(self, norm):
        super().__init__()
        self.first = norm()
        self.second = norm()
        self.act = F.silu
        self.layer = nn.SiLU()

    def forward(self, x):
        x = twice(self.first(x))
        x = swish(x) + F.silu(x) + self.act(x) + self.layer(x)
        return self.second(Ops.shift(x)) + torch.nn.functional.softmax(x, dim=-1)

    def extra(self, x):
        """A method beside the forward."""
        return F.silu(x)
