"""What runs a recorded graph: kernels compiled by inductor, AOTAutograd without a compiler, or the graph as it is."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Backend = Literal["inductor", "aot_eager", "eager"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def compile_graph(graph: torch.fx.GraphModule, example: list[Tensor], backend: str) -> Callable[..., Any]:
    """A callable of the graph's inputs. The graph holds its backward already, so nothing may record gradients around it."""
    if backend == "eager":
        return graph
    with torch.no_grad():
        if backend == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, example)
        from torch._inductor.compile_fx import compile_fx

        # the key of the cache has checked sizes and strides already
        compiled = compile_fx(graph, example, config_patches={"size_asserts": False})
        return torch._dynamo.eval_frame.innermost_fn(compiled)  # type: ignore[arg-type]
