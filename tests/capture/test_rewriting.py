"""What is rewritten before inductor: the same values, less work, and results that stay apart."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import purestep as ps
from purestep.capture.rewriting import MAX_MULTIPLICATIONS, compute_once, write_out_small_products

aten = torch.ops.aten


def recorded(fn, *args):
    return make_fx(fn, tracing_mode="fake")(*args)


def count(graph, *targets):
    return sum(node.target in targets for node in graph.graph.nodes)


def rewritten(rewrite, graph):
    rewrite(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.graph.lint()
    graph.recompile()
    return graph


def seeded(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def test_a_norm_that_is_asked_for_twice_is_computed_once():
    x = seeded(5)
    graph = rewritten(compute_once, recorded(lambda x: (x.square().sum() + 1, x.square().sum() * 2), x))
    assert (count(graph, aten.sum.default), count(graph, aten.pow.Tensor_Scalar)) == (1, 1)
    assert [value.item() for value in graph(x)] == [x.square().sum().item() + 1, x.square().sum().item() * 2]


def test_two_results_of_one_value_keep_memory_of_their_own():
    one, other = rewritten(compute_once, recorded(lambda x: (x + 1, (x + 1).view(5, 1)), seeded(5)))(seeded(5))
    one.zero_()
    assert torch.equal(other[:, 0], seeded(5) + 1)


def test_numbers_that_are_equal_but_of_another_type_are_kept_apart():
    x = torch.ones(2, dtype=torch.int64)
    graph = rewritten(compute_once, recorded(lambda x: ((x * 2).sum(), (x * 2.0).sum()), x))
    assert [value.dtype for value in graph(x)] == [torch.int64, torch.get_default_dtype()]


def test_each_draw_of_random_numbers_stays():
    graph = rewritten(compute_once, recorded(lambda x: (torch.rand_like(x) + 1, torch.rand_like(x) + 2), seeded(5)))
    assert count(graph, aten.rand_like.default) == 2


def product(x, w, b):
    return torch.addmm(b, x, w.T), x.T @ x


def test_small_products_are_written_out_with_their_values():
    args = seeded(7, 5), seeded(3, 5), seeded(3)
    graph = rewritten(write_out_small_products, recorded(product, *args))
    assert count(graph, aten.mm.default, aten.addmm.default) == 0
    for found, expected in zip(graph(*args), product(*args), strict=True):
        # sums of a few products, in another order
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("size", "dtype"), [(MAX_MULTIPLICATIONS, torch.float64), (2, torch.bfloat16), (2, torch.int64)])
def test_large_products_and_those_with_sums_of_another_precision_are_left_to_the_library(size, dtype):
    args = torch.ones(size, 1, dtype=dtype), torch.ones(1, 2, dtype=dtype)
    assert count(rewritten(write_out_small_products, recorded(torch.mm, *args)), aten.mm.default) == 1


@pytest.mark.slow
def test_a_compiled_step_computes_small_products_and_shared_norms_as_the_eager_one():
    def step(state, x):
        new = torch.tanh(x @ state["w"].T + state["b"])
        return {"w": state["w"] - 0.1 * (new.T @ x), "b": state["b"] - new.sum(0)}, {"one": new.norm(), "two": new.norm()}

    def start():
        return {"w": seeded(3, 5), "b": seeded(3)}

    found, expected = ps.compile(step, donate=True)(start(), seeded(7, 5)), step(start(), seeded(7, 5))
    ps.testing.assert_trees_close(found, expected, rtol=1e-13, atol=1e-13)
    assert found[1]["one"].data_ptr() != found[1]["two"].data_ptr()
