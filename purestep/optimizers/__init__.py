"""Finished optimizers: named chains of transforms; `OPTIMIZERS` is the table that the laws run over and a spec chooses from."""

from .adam_family import adam, adamw
from .gradient_descent import sgd

OPTIMIZERS = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
}

__all__ = ["OPTIMIZERS", *OPTIMIZERS]
