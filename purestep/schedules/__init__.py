"""Learning-rate schedules, and schedules of anything else: pure functions from a count to a value.

A count is an int or a tensor; the value is float64, of the count's shape and on its device. Names are optax's without
`_schedule(s)`. `core/schedule.py` says what a schedule is and how a state keeps its value.
"""

from collections.abc import Callable

from ..core.schedule import Schedule
from .cosine import cosine_decay
from .curve import plot
from .cycles import cosine_restarts, cyclic, sgdr
from .exponential import exponential_decay
from .flat import constant
from .joining import join
from .piecewise import piecewise_constant, piecewise_interpolate
from .powers import linear, polynomial
from .root_decay import inverse_sqrt
from .single_cycle import cosine_onecycle, linear_onecycle, onecycle
from .units import in_epochs, in_samples, in_tokens
from .warmup import warmup_constant, warmup_cosine_decay, warmup_exponential_decay, warmup_polynomial_decay, warmup_stable_decay

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine_decay": cosine_decay,
    "cosine_onecycle": cosine_onecycle,
    "cosine_restarts": cosine_restarts,
    "cyclic": cyclic,
    "exponential_decay": exponential_decay,
    "in_epochs": in_epochs,
    "in_samples": in_samples,
    "in_tokens": in_tokens,
    "inverse_sqrt": inverse_sqrt,
    "join": join,
    "linear": linear,
    "linear_onecycle": linear_onecycle,
    "onecycle": onecycle,
    "piecewise_constant": piecewise_constant,
    "piecewise_interpolate": piecewise_interpolate,
    "polynomial": polynomial,
    "sgdr": sgdr,
    "warmup_constant": warmup_constant,
    "warmup_cosine_decay": warmup_cosine_decay,
    "warmup_exponential_decay": warmup_exponential_decay,
    "warmup_polynomial_decay": warmup_polynomial_decay,
    "warmup_stable_decay": warmup_stable_decay,
}

__all__ = ["SCHEDULES", "plot", *SCHEDULES]
