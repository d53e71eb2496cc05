"""A spec made ready for a command that looks at its training and starts no run; nothing is written."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .exits import ExitCode, Refusal

if TYPE_CHECKING:
    from ..core.state import TrainState
    from ..spec.building import Pieces
    from ..spec.envelope import Spec


class Prepared(NamedTuple):
    """What a spec describes, made."""

    spec: "Spec"
    pieces: "Pieces"
    device: str
    settings: dict[str, Any]
    """Of the process, as they hold."""


def read(path: str, overrides: Sequence[str] = ()) -> "Spec":
    """A spec with absolute paths."""
    from ..spec.building import absolute
    from ..spec.reading import read_spec

    return absolute(read_spec(path, overrides), os.path.dirname(path))


@contextlib.contextmanager
def prepared(spec: "Spec", trust: Sequence[str]) -> Iterator[Prepared]:
    """Make what a spec describes, under its settings of the process, which are put back at the end.

    Args:
        spec: With absolute paths.
        trust: What the command line grants.

    Raises:
        TrustError: If a target is not trusted; nothing has been imported then.
        Refusal: If a store or the device is missing.
    """
    from ..spec.building import build, missing_paths
    from ..spec.trust import check_names
    from .spec.granting import find_modules_here, granted

    grants = granted(trust)
    check_names(spec, grants)  # before any path is looked at
    if missing := missing_paths(spec):
        raise Refusal("\n".join(problem.text() for problem in missing), ExitCode.PATH)
    find_modules_here(grants)
    with settings_of(spec) as settings:
        yield Prepared(spec, build(spec, trust=grants), device_of(spec), settings)


def device_of(spec: "Spec") -> str:
    """Where a spec computes.

    Raises:
        Refusal: If it asks for a device that is not there.
    """
    import torch

    available = torch.cuda.is_available()
    if spec.runtime.device == "cuda" and not available:
        advice = ["purestep doctor", "--set runtime.device=cpu"]
        raise Refusal("/runtime/device: this torch sees no CUDA device", ExitCode.ENVIRONMENT, advice)
    return "cuda" if spec.runtime.device != "cpu" and available else "cpu"


def settings_of(spec: "Spec") -> "contextlib.AbstractContextManager[dict[str, Any]]":
    """The settings of the process that a spec asks for, put back at the end; gives what now holds, as plain JSON."""
    from ..loop import RuntimeSettings, use_runtime

    own = spec.runtime
    return use_runtime(RuntimeSettings(deterministic=own.deterministic, tf32=own.tf32, num_threads=own.threads, seed=own.seed))


def compiled(spec: "Spec", pieces: "Pieces") -> Any:
    """The step as a spec compiles it; None if it does not."""
    settings = spec.runtime.compile
    if settings is None:
        return None
    from ..capture import compile

    return compile(pieces.training.step, **settings.model_dump())


def batch_at(batches: Any, number: int, state: "TrainState") -> Any:
    """A batch by its number since the beginning of training, on the device of a state."""
    from ..core import tree

    epoch, index = divmod(number, len(batches))
    return tree.to_device(batches.batch(epoch, index), state.seed.device)
