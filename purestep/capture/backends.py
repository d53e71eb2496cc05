"""What runs a recorded graph: kernels compiled by inductor, AOTAutograd without a compiler, or the graph as it is."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Backend = Literal["inductor", "aot_eager", "eager"]
BACKENDS: tuple[str, ...] = get_args(Backend)


@dataclasses.dataclass(frozen=True)
class Compiler:
    """How recorded graphs become callables, and where their code is kept."""

    backend: Backend
    cache: str | os.PathLike | None
    """The folder in which inductor keeps what it compiled; None: its own, which `TORCHINDUCTOR_CACHE_DIR` names."""
    storage: Literal["leaves", "flat"]
    """Whether leaves that are updated alike share a buffer."""


def compile_graph(graph: Any, example: list[Tensor], compiler: Compiler) -> tuple[Callable[..., Any], str]:
    """A callable of the graph's inputs, and what the cache had: `"hit"`, `"miss"`, `"bypass"`, or nothing where there is none.

    The graph holds its backward already, so nothing may record gradients around it.
    """
    if compiler.backend == "eager":
        return graph, ""
    with torch.no_grad():
        if compiler.backend == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, example), ""
        return _by_inductor(graph, example, compiler.cache)


def _by_inductor(graph: Any, example: list[Tensor], cache: str | os.PathLike | None) -> tuple[Callable[..., Any], str]:
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # without a shape environment both caches of compiled code, AOTAutograd's and inductor's, are passed by
    context = torch._guards.TracingContext(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
    before = dict(counters["inductor"])
    with torch._guards.tracing(context), temporary_cache_dir(os.fspath(cache)) if cache is not None else contextlib.nullcontext():
        # the key of our own cache has checked sizes and strides already
        compiled = compile_fx(graph, example, config_patches={"size_asserts": False}, ignore_shape_env=True)
    found = (
        how for how in ("hit", "miss", "bypass") if counters["inductor"][f"fxgraph_cache_{how}"] > before.get(f"fxgraph_cache_{how}", 0)
    )
    return torch._dynamo.eval_frame.innermost_fn(compiled), next(found, "")  # type: ignore[arg-type]
