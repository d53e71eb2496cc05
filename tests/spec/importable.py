"""Parts that a recipe can name, good and bad ones."""

import dataclasses

import torch
from torch import nn

import purestep as ps
from purestep.core.transform import GradientTransform
from purestep.metrics import Metric
from purestep.schedules import Schedule


class Kept(nn.Module):
    def __init__(self, width: int, names: tuple[str, ...] = (), dtype: torch.dtype = torch.float32):
        super().__init__()
        self.width, self.names, self.dtype = width, names, dtype
        self.layer = nn.Linear(width, 1)


class Lost(nn.Module):
    def __init__(self, width: int = 2):
        super().__init__()
        self.layer = nn.Linear(width, 1)


class Transformed(nn.Module):
    """Keeps something else than it was given."""

    def __init__(self, width: int):
        super().__init__()
        self.width = 2 * width
        self.layer = nn.Linear(self.width, 1)


class Said(Transformed):
    def checkpoint_spec(self):
        return {"width": self.width // 2}


class Open(nn.Module):
    def __init__(self, **arguments):
        super().__init__()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term(ps.LossTerm):
    prediction_key: str = "energy"
    target_key: str = "energy"
    power: float = 2.0

    def __call__(self, prediction, target, batch):
        error = (prediction - target).abs() ** self.power
        return ps.Sums(error.sum(), torch.ones_like(error).sum())


def doubling(factor: float = 2.0) -> GradientTransform:
    return ps.stateless(lambda updates, params: ps.tree.map(lambda update: factor * update, updates), "doubling")


def counting(name: str = "counting") -> ps.Hook:
    return ps.hooks.loss_statistics(name=name)


def halving(start: float, every: int = 10) -> Schedule:
    return lambda count: start * 0.5 ** torch.div(torch.as_tensor(count, dtype=torch.float64), every, rounding_mode="floor")


@dataclasses.dataclass(frozen=True)
class Flat:
    """A schedule that is an object."""

    value: float = 0.01

    def __call__(self, count) -> torch.Tensor:
        return torch.full((), self.value, dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Atoms(Metric):
    """The atoms of all batches."""

    prediction_key: str = "energy"
    target_key: str = "energy"

    def empty(self):
        return {"atoms": torch.zeros((), dtype=torch.float64)}

    def count(self, predictions, batch):
        return {"atoms": torch.tensor(float(len(batch.positions)), dtype=torch.float64)}

    def result(self, sums):
        return {"atoms": sums["atoms"]}


def undeclared():
    return ps.hooks.ema()


def lying() -> ps.Hook:
    return "no hook"


def mean(prediction, target, batch):
    return (prediction - target).mean()


local = (lambda: lambda: None)()
