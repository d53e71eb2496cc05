"""What runs a recorded graph: kernels compiled by inductor, AOTAutograd without a compiler, or the graph as it is."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from .outlining import outline
from .sums import store_sums

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
    options: Mapping[str, Any]
    """Settings of inductor."""


def compile_graph(graph: fx.GraphModule, example: list[Tensor], compiler: Compiler) -> tuple[Callable[..., Any], str, int]:
    """A callable of the graph's inputs, what the cache had, and how often the callable calls code that serves many leaves.

    The cache had a `"hit"`, a `"miss"`, a `"bypass"`, or nothing where there is none.
    The graph holds its backward already, so the callable records no gradients; AOTAutograd sees to that by itself.
    """
    program = outline(graph)
    if program is None:
        return *_compile(graph, example, compiler), 0
    if compiler.backend == "inductor":
        store_sums(program.stages[0].graph)
    runs, found = [], []
    for number, stage in enumerate(program.stages):
        operands = _of_any_length(stage.operands) if stage.is_shared else example if number == 0 else [_empty(x) for x in stage.operands]
        run, how = _compile(stage.graph, operands, compiler)
        runs.append(run)
        found.append(how)
    worst = next((how for how in ("bypass", "miss", "hit") if how in found), "")
    return torch.no_grad()(program.link(runs)), worst, program.count()


def _empty(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _of_any_length(operands: Sequence[Tensor]) -> list[Tensor]:
    """Stand-ins of one dimension, all of one length that is not known; scalars stay scalars."""
    env = ShapeEnv()
    source, typical = ConstantSource("length"), 2**16  # long enough to be worth several threads
    length = env.create_symintnode(env.create_symbol(typical, source, DimDynamic.DYNAMIC, None), hint=typical, source=source)
    with FakeTensorMode(shape_env=env):
        return [torch.empty(() if x.ndim == 0 else (length,), dtype=x.dtype, device=x.device) for x in operands]


def _compile(graph: fx.GraphModule, example: list[Tensor], compiler: Compiler) -> tuple[Callable[..., Any], str]:
    if compiler.backend == "eager":
        return torch.no_grad()(graph.forward), ""
    with torch.no_grad():
        if compiler.backend == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, example), ""
        return _by_inductor(graph, example, compiler)


def _by_inductor(graph: Any, example: list[Tensor], compiler: Compiler) -> tuple[Callable[..., Any], str]:
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

    from .rewriting import Rewriting

    # without a shape environment both caches of compiled code, AOTAutograd's and inductor's, are passed by
    mode = next((x.fake_mode for x in example if isinstance(x, FakeTensor)), None)
    context = torch._guards.TracingContext(mode or FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
    before = dict(counters["inductor"])
    folder = contextlib.nullcontext() if compiler.cache is None else temporary_cache_dir(os.fspath(compiler.cache))
    with torch._guards.tracing(context), folder:
        # the key of our own cache has checked sizes and strides already
        options = {"size_asserts": False, "post_grad_custom_pre_pass": Rewriting(), **compiler.options}
        compiled = compile_fx(graph, example, config_patches=options, ignore_shape_env=mode is None)
    found = (
        how for how in ("hit", "miss", "bypass") if counters["inductor"][f"fxgraph_cache_{how}"] > before.get(f"fxgraph_cache_{how}", 0)
    )
    return torch._dynamo.eval_frame.innermost_fn(compiled), next(found, "")  # type: ignore[arg-type]
