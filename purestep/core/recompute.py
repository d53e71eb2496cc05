"""Activation checkpointing inside the step: a region that is recomputed in the backward sees what it saw in the forward.

`torch.utils.checkpoint` runs a region again while the gradient is taken, when the parameters of the state are no longer in the modules'
slots and the random draws have moved on. While `Recomputable` is active, each region remembers how to bring both back.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint


class Recomputable:
    """A context in which checkpointed regions remember how to be recomputed.

    Args:
        replay: Called when a region begins; returns a function that makes the context to recompute it in.
    """

    # Non-reentrant checkpointing goes through one function of torch's module, also where `checkpoint` was imported early. (Its
    # context_fn is no way in: it is refused while a graph is being recorded.) Dynamo recomputes by itself, keyed draws included.

    def __init__(self, replay: Callable[[], Callable[[], contextlib.AbstractContextManager]]):
        self.replay = replay
        self.original: Any = None

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        self.original = original = torch_checkpoint._checkpoint_without_reentrant_generator

        def generator(fn: Callable, preserve_rng_state: bool, *options: Any, **kwargs: Any) -> Any:
            replay = self.replay()

            def region(*args: Any, **kwargs: Any) -> Any:  # called for the recomputation only
                with replay():
                    return fn(*args, **kwargs)

            return original(region, False, *options, **kwargs)  # no global generator needs preserving

        torch_checkpoint._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]

    def __exit__(self, *exception: object) -> None:
        if self.original is not None:
            torch_checkpoint._checkpoint_without_reentrant_generator = self.original
