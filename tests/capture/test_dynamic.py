"""One captured graph for a range of sizes: what it computes, what it relies on, and what is refused."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purestep as ps
from purestep.errors import CaptureError, PatternError, RecompileError
from purestep.testing import assert_trees_close
from tests.examples_of_models import Plain, batches, molecules, potential_training, run, seeded, training

BACKENDS = ["eager", "aot_eager"]
SIZES = {"*": {0: ("n", 2, 64)}}


def rows(*sizes):
    return [batches(1, size=size, seed=size)[0] for size in sizes]


def agrees_from_one_capture(tr, data, **options):
    """Train by one captured graph and by the step itself; symbolic sizes change no arithmetic, compilers its order: 1e-10 in float64."""
    step = ps.compile(tr.step, donate=True, on_recompile="error", **options)
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)
    assert len(step.explain()) == 1
    return step.explain()[0]


@pytest.mark.parametrize(("backend", "engine"), [("eager", "autograd"), ("aot_eager", "autograd"), ("eager", "func")])
def test_one_graph_serves_batches_of_several_sizes(backend, engine):
    record = agrees_from_one_capture(training(grad_engine=engine), rows(8, 5, 30, 2), backend=backend, dynamic=SIZES)  # with dropout
    assert record.sizes == ("2 <= n <= 64",)


@pytest.mark.slow
def test_compiled_kernels_serve_batches_of_several_sizes():
    agrees_from_one_capture(training(seeded(Plain)), rows(8, 5, 30, 2), dynamic=SIZES)


class Language(nn.Module):
    """One layer of causal attention over characters."""

    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(11, 8), nn.Embedding(32, 8)
        self.inputs, self.outputs = nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        query, key, value = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in self.inputs(hidden).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outputs(hidden + mixed.transpose(1, 2).flatten(2))


def next_character(model, batch):
    return {"loss": F.cross_entropy(model(batch["tokens"][:, :-1]).flatten(0, 1), batch["tokens"][:, 1:].flatten())}


def language_training():
    def loss(params, batch):
        return next_character(lambda tokens: torch.func.functional_call(model, params, (tokens,)), batch)["loss"]

    model, optimizer = seeded(Language), ps.chain(ps.clip_by_global_norm(1.0), ps.adamw(1e-2))
    return ps.make_step(loss, optimizer), ps.init_state({k: v.detach().clone() for k, v in model.named_parameters()}, optimizer)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_serves_texts_of_several_lengths(backend):
    step, state = language_training()
    gen = torch.Generator().manual_seed(0)
    data = [{"tokens": torch.randint(11, (3, length), generator=gen)} for length in (9, 17, 4, 30)]
    compiled = ps.compile(step, backend=backend, on_recompile="error", dynamic={"tokens": {1: torch.export.Dim("length", min=3, max=33)}})
    assert_trees_close(run(compiled, state, data), run(step, state, data), rtol=1e-10, atol=1e-10)  # sums in another order


ATOMS, EDGES = {0: ("atoms", 2, 100)}, ("edges", 2, 400)
ATOMISTIC = {
    **dict.fromkeys(("positions", "numbers", "batch", "atom_mask", "forces"), ATOMS),
    "edge_index": {1: EDGES},
    "edge_*": {0: EDGES},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_trains_energies_and_forces_on_any_numbers_of_atoms_and_edges(backend):
    data = [molecules(counts, seed=i) for i, counts in enumerate([(4, 3), (5, 3), (7, 6)])]
    assert len({batch.edge_mask.shape for batch in data}) == len({batch.numbers.shape for batch in data}) == 3
    agrees_from_one_capture(potential_training("schnet"), data, backend=backend, dynamic=ATOMISTIC)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_form_of_an_accumulating_step_serves_all_sizes(backend):
    tr, data = training(seeded(Plain), optimizer=ps.chain(ps.accumulate(2), ps.sgd(0.1))), rows(4, 9, 7, 3)
    step = ps.compile(tr.step, donate=True, backend=backend, on_recompile="error", dynamic=SIZES)
    assert_trees_close(run(step, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)
    assert [record.sizes for record in step.explain()] == [("2 <= n <= 64",)] * 2


def doubled(state, batch):
    return state, {"y": 2.0 * batch["x"]}


def captured(step, dynamic, **options):
    return ps.compile(step, backend="eager", dynamic=dynamic, **options)


@pytest.mark.parametrize(
    "batch",
    [torch.ones(12, 3), torch.ones(1, 3), torch.ones(0, 3), torch.ones(3, 4).T],
    ids=["above", "one", "none", "strided"],
)
def test_a_size_out_of_the_range_or_another_layout_is_a_capture_of_its_own(batch):
    step = captured(doubled, {"x": {0: ("n", 2, 10)}}, on_recompile="ignore")
    for x in (torch.ones(5, 3), batch, torch.ones(6, 3), batch):
        assert step({}, {"x": x})[1]["y"].equal(2.0 * x)
    assert len(step.explain()) == 2


def test_what_left_the_range_is_said():
    step = captured(doubled, {"x": {0: ("n", 2, 10)}}, on_recompile="error")
    step({}, {"x": torch.ones(5, 3)})
    with pytest.raises(RecompileError, match=r"x was float32\[n, 3\] on cpu, is float32\[12, 3\] on cpu"):
        step({}, {"x": torch.ones(12, 3)})


def test_sizes_of_one_name_that_differ_are_a_capture_of_their_own():
    step = captured(lambda state, batch: (state, batch["a"].sum() + batch["b"].sum()), {"*": {0: ("n", 2, 10)}}, on_recompile="ignore")
    for a, b in ((5, 5), (4, 4), (4, 5)):
        assert step({}, {"a": torch.ones(a), "b": torch.ones(b)})[1].item() == a + b
    assert len(step.explain()) == 2


@pytest.mark.parametrize("donate", [False, True])
def test_a_step_that_decides_by_a_size_gets_a_graph_for_each_outcome(donate):
    def forward(model, batch):
        return {"y": model(batch["x"]) * (3.0 if batch["x"].shape[0] > 8 else 1.0)}

    tr, data = training(seeded(Plain), forward=forward), rows(5, 9, 6, 12)
    compiled = captured(tr.step, SIZES, on_recompile="ignore", donate=donate)
    assert_trees_close(run(compiled, tr.init(), data), run(tr.step, tr.init(), data), rtol=1e-10, atol=1e-10)
    assert [record.sizes for record in compiled.explain()] == [("2 <= n <= 64", "n <= 8"), ("2 <= n <= 64", "n > 8")]
    assert "a decision that the step takes by a size" in compiled.explain()[1].reason


def test_two_sizes_that_the_step_found_equal_are_not_taken_for_equal_later():
    step = captured(
        lambda state, b: (state, torch.full((), 1.0 if b["a"].shape[0] == b["b"].shape[0] else 2.0)),
        {"a": {0: ("n", 2, 10)}, "b": {0: ("m", 2, 10)}},
        on_recompile="ignore",
    )
    for a, b, expected in ((4, 4, 1.0), (4, 5, 2.0), (6, 6, 1.0)):
        assert step({}, {"a": torch.ones(a), "b": torch.ones(b)})[1].item() == expected
    assert len(step.explain()) == 2


def loop(x):
    return sum((x[i] for i in range(x.shape[0])), torch.zeros(3))


def scripted(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for i in range(x.size(0)):
        total = total + x[i]
    return total


def by_script(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(scripted)(x)


SPECIALISING = {
    "loop": loop,
    "script": by_script,
    "int": lambda x: x * int(x.shape[0]),
    "len": lambda x: x * len(x),
    "float": lambda x: x * float(x.shape[0]),
}


@pytest.mark.parametrize("function", SPECIALISING.values(), ids=SPECIALISING)
def test_a_size_that_was_taken_as_a_number_is_told(function):
    step = captured(lambda state, batch: (state, function(batch["x"])), {"x": {0: ("n", 2, 10)}})
    with pytest.raises(CaptureError, match=r"size 'n' \(axis 0 of x in argument 2\) was taken as the number 5.*pad"):
        step({}, {"x": torch.ones(5, 3)})


def test_a_leaf_that_has_the_size_too_but_was_not_named_is_told():
    step = ps.compile(lambda state, batch: ({"a": (batch["x"] - batch["y"]).sum()}, {}), backend="eager", dynamic={"x": {0: ("n", 2, 9)}})
    batch = {"x": torch.ones(5, 3), "y": torch.ones(5, 3)}
    with pytest.raises(
        CaptureError, match=r"\(axis 0 of x in argument 2\).*If axis 0 of y in argument 2 is the same size, name it in dynamic"
    ):
        step({"a": torch.ones(())}, batch)


@pytest.mark.parametrize("dynamic", [True, ["x"], {"x": ("n", 2, 9)}], ids=str)
def test_sizes_that_are_no_mapping_are_refused_with_the_form_that_they_have(dynamic):
    with pytest.raises(ValueError, match=r'compile: dynamic.*as in|compile: dynamic must be \{"tokens": \{1: \("length", 2, 512\)\}\}'):
        ps.compile(lambda state: state, dynamic=dynamic)


REFUSED = {
    "a number read": (lambda x: x * x.sum().item(), "reads a number from a tensor at .*test_dynamic"),
    "a boolean index": (lambda x: x[x > 0], "reads a number from a tensor"),
    "a size as a key": (lambda x: x * len({x.shape[0]}), "unhashable"),
    "a size returned": (lambda x: x.shape[0], "a number computed from a size"),
}


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_graph_for_a_range_of_sizes_cannot_know_is_refused(function, message):
    step = captured(lambda state, batch: (state, {"y": function(batch["x"])}), {"x": {0: ("n", 2, 10)}})
    with pytest.raises(CaptureError, match=message):
        step({}, {"x": torch.ones(5, 3)})


def test_patterns_are_of_the_batch_not_of_the_state():
    step = captured(lambda state, batch: (state, batch["x"]), {"w": {0: ("n", 2, 10)}})
    with pytest.raises(PatternError, match=r"'w' matches none.*sizes of a state are fixed"):
        step({"w": torch.ones(3)}, {"x": torch.ones(3)})


def test_an_axis_that_a_leaf_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"axes \[2\] of x, which has 1 axes"):
        captured(doubled, {"x": {2: ("n", 2, 10)}})({}, {"x": torch.ones(3)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic": SIZES, "capture": "dynamo"}, "capture='trace'"),
        ({"dynamic": SIZES, "storage": "flat", "donate": True}, "storage='leaves'"),
        ({"dynamic": {"x": {0: ("n", 1, 10)}}}, "begin at 2"),
        ({"dynamic": {"x": {0: torch.export.Dim("n")}}}, "begin at 2"),
        ({"dynamic": {"x": {0: ("n", 10, 10)}}}, "min < max"),
        ({"dynamic": {"x": {0: 3}}}, "min < max"),
        ({"dynamic": {"x": {"0": ("n", 2, 10)}}}, "an axis is a whole number"),
        ({"dynamic": {"x": {0: ("n", 2, 10)}, "y": {0: ("n", 2, 11)}}}, "two ranges"),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        ps.compile(doubled, **options)


def test_warming_up_with_one_size_serves_all():
    tr, data = training(seeded(Plain)), rows(8, 5, 12)
    step = ps.compile(tr.step, donate=True, backend="eager", on_recompile="error", dynamic=SIZES)
    step.warmup(data[:1], state=tr.init())
    assert_trees_close(run(step, tr.init(), data[1:]), run(tr.step, tr.init(), data[1:]), rtol=1e-10, atol=1e-10)
    assert len(step.explain()) == 1


def test_a_tensor_that_the_step_closes_over_keeps_its_value_of_the_moment():
    scale = torch.tensor([2.0, 3.0, 4.0])
    step = captured(lambda state, batch: (state, batch["x"] * scale), {"x": {0: ("n", 2, 10)}})
    step({}, {"x": torch.ones(5, 3)})
    scale.mul_(2)
    assert step({}, {"x": torch.ones(4, 3)})[1].equal(scale.expand(4, 3))


def test_a_step_of_a_plain_function_serves_several_numbers_of_samples():
    step = ps.make_step(lambda params, batch: ((batch["x"] @ params) ** 2).mean(), ps.sgd(0.1))
    state = ps.init_state(torch.ones(2, dtype=torch.float64), ps.sgd(0.1))
    compiled = ps.compile(step, backend="eager", on_recompile="error", dynamic={"x": {0: ("samples", 2, 64)}})
    for samples in (5, 9, 64):
        batch = {"x": torch.linspace(0.0, 1.0, 2 * samples, dtype=torch.float64).reshape(samples, 2)}
        assert_trees_close(compiled(state, batch), step(state, batch), rtol=1e-10, atol=1e-10)
