"""Finished optimizers: named chains of transforms; `OPTIMIZERS` is the table that the laws run over and a spec chooses from."""

from ..transforms.estimated_distance import dadapt_adamw, prodigy
from ..transforms.model_based import momo, momo_adam
from .adam_family import adam, adamw
from .adam_relatives import amsgrad, lamb, nadam, nadamw, radam
from .adam_successors import acprop, ademamix, adopt, simplified_ademamix
from .adam_variants import adabelief, adamax, adamaxw, adan, novograd, yogi
from .factored import adafactor, adafactor_torch
from .gradient_descent import sgd
from .gradient_only import (
    adadelta,
    fromage,
    noisy_sgd,
    optimistic_adam,
    optimistic_adam_v2,
    optimistic_gradient_descent,
    polyak_sgd,
    rprop,
    sign_sgd,
    signum,
    sm3,
)
from .layerwise_adaptive import lars
from .matrix_methods import galore, muon, shampoo, soap
from .parameter_free import cocob, dog, dowg, madgrad
from .plan import describe
from .private import dpsgd
from .root_mean_square import adagrad, rmsprop
from .schedule_free_family import schedule_free_adamw, schedule_free_sgd
from .second_order import lbfgs, sophia
from .sign_methods import lion

OPTIMIZERS = {
    # gradient descent
    "sgd": sgd,
    "noisy_sgd": noisy_sgd,
    "lars": lars,
    "lion": lion,
    "sign_sgd": sign_sgd,
    "signum": signum,
    "optimistic_gradient_descent": optimistic_gradient_descent,
    "polyak_sgd": polyak_sgd,
    "rprop": rprop,
    "fromage": fromage,
    "dpsgd": dpsgd,
    # running moments
    "adam": adam,
    "adamw": adamw,
    "nadam": nadam,
    "nadamw": nadamw,
    "amsgrad": amsgrad,
    "radam": radam,
    "lamb": lamb,
    "adamax": adamax,
    "adamaxw": adamaxw,
    "adabelief": adabelief,
    "yogi": yogi,
    "adan": adan,
    "novograd": novograd,
    "optimistic_adam": optimistic_adam,
    "optimistic_adam_v2": optimistic_adam_v2,
    # squares alone
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "adadelta": adadelta,
    "adafactor": adafactor,
    "adafactor_torch": adafactor_torch,
    "sm3": sm3,
    # successors of Adam
    "ademamix": ademamix,
    "simplified_ademamix": simplified_ademamix,
    "adopt": adopt,
    "acprop": acprop,
    # matrices and curvature
    "muon": muon,
    "soap": soap,
    "shampoo": shampoo,
    "galore": galore,
    "sophia": sophia,
    "lbfgs": lbfgs,
    # schedule-free
    "schedule_free_sgd": schedule_free_sgd,
    "schedule_free_adamw": schedule_free_adamw,
    # without a learning rate, or nearly
    "prodigy": prodigy,
    "dadapt_adamw": dadapt_adamw,
    "dog": dog,
    "dowg": dowg,
    "cocob": cocob,
    "madgrad": madgrad,
    "momo": momo,
    "momo_adam": momo_adam,
}

__all__ = ["OPTIMIZERS", "describe", *OPTIMIZERS]
