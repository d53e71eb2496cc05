"""What runs a recorded graph: kernels compiled by inductor, AOTAutograd without a compiler, or the graph as it is."""

import contextlib
import contextvars
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from .outlining import outline
from .replay import CudaGraphs
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
    cuda_graphs: CudaGraphs | None = None
    """What records graphs on the device; None: they are launched operation by operation."""


@contextlib.contextmanager
def preparing(compiler: Compiler, example: list[Tensor]) -> Iterator[None]:
    """Where a step is recorded: inductor meanwhile finds out which vector instructions the CPU has.

    It tries each kind in a process of its own, for which it would wait later.
    """
    if compiler.backend != "inductor" or all(x.device.type != "cpu" for x in example):
        yield
        return
    import torch._inductor.compile_fx  # noqa: F401  here, not in two threads at once
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list

    def find() -> None:
        with contextlib.suppress(Exception):  # the compiler will meet it again, and say so
            valid_vec_isa_list()

    with _folder(compiler):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(find,), daemon=True)  # with the settings of this thread
        thread.start()
        try:
            yield
        finally:
            thread.join()


def _folder(compiler: Compiler) -> contextlib.AbstractContextManager[None]:
    from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir

    return contextlib.nullcontext() if compiler.cache is None else temporary_cache_dir(os.fspath(compiler.cache))


def compile_graph(graph: fx.GraphModule, example: list[Tensor], compiler: Compiler) -> tuple[Callable[..., Any], str, int]:
    """A callable of the graph's inputs, what the cache had, and how often the callable calls code that serves many leaves.

    The cache had a `"hit"`, a `"miss"`, a `"bypass"`, or nothing where there is none.
    The graph holds its backward already, so the callable records no gradients; AOTAutograd sees to that by itself.
    """
    # cutting compares sizes, and would tie a graph that serves a range of them to some; flat storage has one kernel for a buffer anyway
    is_plain = compiler.storage == "leaves" and not any(isinstance(x, FakeTensor) for x in example)
    program = outline(graph) if is_plain else None
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
    from torch._dynamo.source import ConstantSource

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

    from .rewriting import Rewriting

    # without a shape environment both caches of compiled code, AOTAutograd's and inductor's, are passed by
    mode = next((x.fake_mode for x in example if isinstance(x, FakeTensor)), None)
    context = torch._guards.TracingContext(mode or FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
    before = dict(counters["inductor"])
    with torch._guards.tracing(context), _folder(compiler):
        # the key of our own cache has checked sizes and strides already
        options = {"size_asserts": False, "post_grad_custom_pre_pass": Rewriting(), **compiler.options}
        compiled = compile_fx(graph, example, config_patches=options, ignore_shape_env=mode is None)
    found = (
        how for how in ("hit", "miss", "bypass") if counters["inductor"][f"fxgraph_cache_{how}"] > before.get(f"fxgraph_cache_{how}", 0)
    )
    return torch._dynamo.eval_frame.innermost_fn(compiled), next(found, "")  # type: ignore[arg-type]
