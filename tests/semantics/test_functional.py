"""Modules as functions: ties, BatchNorm, derivatives of derivatives, and one capture for a whole run."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import purestep as ps
from purestep.data import Loader, collate, plan_buckets, prepare
from purestep.errors import RecompileError
from purestep.models import SchNet
from purestep.models.forces import value_and_derivatives
from purestep.testing import assert_trees_close, assert_trees_equal
from tests.examples_of_models import batches, poisoned, run, seeded, training

# --- ties -----------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An embedding that is the head too, and a layer under two names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch):
        return {"logits": self.head(self.b(self.a(self.embedding(batch["tokens"])).tanh()).tanh())}


def tied_batch():
    gen = torch.Generator().manual_seed(3)
    return {key: torch.randint(7, (6,), generator=gen) for key in ("tokens", "labels")}


def test_three_pure_steps_leave_a_module_with_ties_the_same_objects_with_the_same_bits():
    model = seeded(Tied)
    held = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters(remove_duplicate=False)}
    tr = ps.Training(model, loss=ps.CrossEntropyLoss(), optimizer=ps.adamw(0.1))
    run(tr.step, tr.init(), [tied_batch()] * 3)
    now = dict(model.named_parameters(remove_duplicate=False))
    assert model.b is model.a and model.head.weight is model.embedding.weight
    assert all(id(now[name]) == identity and torch.equal(now[name], value) for name, (identity, value) in held.items())


def test_a_tied_leaf_is_one_leaf_with_the_gradient_of_autograd_and_stays_tied_through_a_checkpoint(tmp_path):
    model, batch = seeded(Tied), tied_batch()
    tr = ps.Training(model, loss=ps.CrossEntropyLoss(), optimizer=ps.sgd(1.0))
    state = tr.init()
    after, _ = tr.step(state, batch)
    nn.functional.cross_entropy(model(batch)["logits"], batch["labels"]).backward()
    for name, p in model.named_parameters():
        assert torch.allclose(state.params[name] - after.params[name], p.grad, rtol=1e-12, atol=1e-14), name
    assert "head.weight" not in state.params
    assert ("head.weight", "embedding.weight") in state.aliases
    ps.save(tmp_path / "tied", after)
    found = ps.load(tmp_path / "tied", like=tr.init())
    assert found.aliases == after.aliases
    assert_trees_equal(tr.step(found, batch), tr.step(after, batch))


# --- BatchNorm ------------------------------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_statistics_of_batchnorm_come_back_as_new_leaves_and_are_those_of_the_module():
    model, batch = seeded(Normed), batches(1)[0]
    tr = training(model, ps.sgd(0.1))
    state = tr.init()
    before = ps.tree.clone(state)
    first, again = tr.step(state, batch), tr.step(state, batch)
    model.train()(batch["x"])
    assert_trees_equal(state, before)
    assert_trees_equal(first, again)
    tracked = first[0].buffers["norm.num_batches_tracked"]
    assert (tracked.item(), tracked.dtype) == (1, torch.int64)
    # the same formula, in torch's own kernel
    assert_trees_close(first[0].buffers, dict(model.named_buffers()), rtol=1e-12, atol=1e-14)
    tr.evaluate(first[0], batch)
    assert_trees_equal(first[0], again[0])


def test_batchnorm_of_two_forward_passes_in_one_step_counts_both():
    def twice(model, batch):
        return {"y": model(batch["x"]) + model(batch["y"])}

    tr = training(seeded(Normed), ps.sgd(0.1), forward=twice)
    assert tr.step(tr.init(), batches(1)[0])[0].buffers["norm.num_batches_tracked"].item() == 2


# --- derivatives of derivatives ---------------------------------------------------------------------------------------


class Bowl(nn.Module):
    """Energies of five atoms from their positions by a network of 3, 8 and 1 units, and forces as slopes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, batch):
        total = lambda positions: self.net(positions).sum().reshape(1, 1)  # noqa: E731
        energy, (slope,) = value_and_derivatives(total, (batch["positions"],), self.parameters())
        return {"energy": energy, "forces": -slope}


def bowl(optimizer, dtype=torch.float64, **changes):
    loss = 1.0 * ps.MSELoss(prediction_key="energy", target_key="energy", name="energy")
    loss = loss + 10.0 * ps.MSELoss(prediction_key="forces", target_key="forces", name="forces")
    return ps.Training(seeded(Bowl).to(dtype), loss=loss, optimizer=optimizer, **changes)


def five_atoms(dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)  # noqa: E731
    return {"positions": draw(5, 3), "energy": draw(1, 1), "forces": draw(5, 3)}


FORMS = {
    "captured": lambda step: ps.compile(step, backend="aot_eager"),
    "dynamo": lambda step: torch.compile(step, fullgraph=True, backend="aot_eager"),
    "inductor": ps.compile,
}


@pytest.mark.parametrize("form", ["captured", "dynamo", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_a_compiled_step_on_energies_and_forces_has_the_eager_numbers_in_every_leaf(form, dtype, tolerance):
    torch._dynamo.reset()
    tr, batch = bowl(ps.adamw(1e-2), dtype), five_atoms(dtype)
    state, _ = run(tr.step, tr.init(), [batch] * 2)
    # fused otherwise: rounding only
    assert_trees_close(FORMS[form](tr.step)(state, batch), tr.step(state, batch), rtol=tolerance, atol=tolerance)


def test_the_gradient_of_a_force_loss_is_that_of_finite_differences():
    tr, batch, step = bowl(ps.sgd(1.0)), five_atoms(), 1e-5
    state = tr.init()
    gradient = state.params["net.0.weight"] - tr.step(state, batch)[0].params["net.0.weight"]

    def loss(number, shift):
        weight = state.params["net.0.weight"].clone()
        weight.view(-1)[number] += shift
        moved = dataclasses.replace(state, params={**state.params, "net.0.weight": weight})
        return tr.step(moved, batch)[1]["loss/total"].item()

    slopes = [(loss(number, step) - loss(number, -step)) / (2 * step) for number in range(10)]
    # the third derivative times step^2 is some 1e-10
    assert gradient.view(-1)[:10].tolist() == pytest.approx(slopes, rel=1e-6, abs=1e-9)


SCRIPT = """
import sys
import torch
import torch._inductor.config
torch.set_num_threads(1)
torch._inductor.config.cpp_cache_precompile_headers = False  # would take most of the time here
import purestep as ps

def loss(w, x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((w * x.tanh()).sum(), x, create_graph=True)
    return slope.square().mean()

step = ps.compile(ps.make_step(loss, ps.sgd(0.1)), cache=sys.argv[1])
state, metrics = step(ps.init_state(torch.ones(3), ps.sgd(0.1)), torch.arange(3.0))
print(step.explain()[0].cache, *(leaf.double().sum().item().hex() for leaf in ps.tree.leaves((state, metrics))))
"""


@pytest.mark.slow
def test_a_second_process_with_a_warm_compile_cache_gives_the_same_numbers(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    found = [
        subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout.split()
        for _ in range(2)
    ]
    assert [cache for cache, *_ in found] == ["miss", "hit"]
    assert found[0][1:] == found[1][1:] != []


# --- one capture for a run ------------------------------------------------------------------------------------------


def test_fifty_steps_with_schedules_scales_skips_and_warm_up_are_one_capture():
    rate = ps.schedules.warmup_cosine_decay(0.0, 1e-2, 10, 50, 1e-4)
    optimizer = ps.chain(
        ps.dynamic_loss_scale(2.0**10, growth_interval=7), ps.skip_nonfinite(), ps.clip_by_global_norm(1.0), ps.adamw(rate)
    )
    tr = training(optimizer=optimizer, hooks=(ps.hooks.ema(ps.hooks.warmup_decay(0.999)),))
    step, state, scales = ps.compile(tr.step, backend="eager", on_recompile="error"), tr.init(), set()
    for number, batch in enumerate(batches(50)):
        state, metrics = step(state, poisoned(batch) if number in (11, 30) else batch)
        scales.add(metrics["loss_scale/scale"].item())
    assert (len(step.explain()), state.counters.step_count.item()) == (1, 48)
    assert len(scales) > 3


def molecules_of_twenty_sizes():
    rng = np.random.default_rng(0)
    return [
        prepare(
            {
                "numbers": rng.choice([1, 6], count),
                "positions": 1.5 * rng.normal(size=(count, 3)),
                "energy": rng.normal(),
                "forces": rng.normal(size=(count, 3)),
            },
            3.0,
        )
        for count in range(2, 22)
    ]


def potential_step(**options):
    loss = 1.0 * ps.EnergyMSELoss() + 10.0 * ps.ForceMSELoss()
    with torch.random.fork_rng(devices=[]):
        tr = ps.Training(SchNet(hidden_size=4, num_layers=1, num_radial=3, cutoff=3.0, max_number=6), loss=loss, optimizer=ps.sgd(1e-3))
    return ps.compile(tr.step, backend="eager", **options), tr.init()


def test_twenty_sizes_of_molecules_in_three_buckets_are_at_most_three_captures():
    frames = molecules_of_twenty_sizes()
    plan = plan_buckets(frames, 1, num_sizes=3)
    step, state = potential_step(on_recompile="ignore")
    for batch in Loader(frames, 1, collate=lambda chosen, mask: collate(chosen, mask, pad_to=plan.sizes)).epoch(0):
        state, _ = step(state, batch)
    assert len(step.explain()) <= len(plan.sizes) <= 3


def test_sizes_that_are_not_padded_are_an_error_in_strict_mode():
    step, state = potential_step(on_recompile="error")
    first, second, *_ = molecules_of_twenty_sizes()
    step(state, collate([first]))
    with pytest.raises(RecompileError, match="pad batches to few sizes"):
        step(state, collate([second]))
