"""Losses, hooks and transforms from elsewhere, and transforms of transforms: described without being imported, built when trusted."""

import sys

import pytest
import torch

from purestep.core import tree
from purestep.errors import SpecError, TrustError
from purestep.spec.building import build
from purestep.spec.reading import check_text, document_of
from purestep.spec.summary import summarize
from tests.spec.examples import changed, text_of

HERE = "tests.spec.importable"
SLOW, FAST = {"kind": "adamw", "learning_rate": 1e-5}, {"kind": "chain", "parts": [{"kind": "clip", "max_delta": 1.0}, {"kind": "adamw"}]}
TARGETS = {
    "strategy/loss/0": {"cls_path": f"{HERE}.Term", "power": 3.0, "weight": 2.0},
    "strategy/hooks/0": {"cls_path": f"{HERE}.counting", "name": "c"},
    "strategy/update/1": {"cls_path": f"{HERE}.doubling", "factor": 0.5},
    "strategy/schedule": {"cls_path": f"{HERE}.halving", "start": 0.01},
    "validation/metrics/0": {"cls_path": f"{HERE}.Atoms"},
}
DOUBLING = {"cls_path": f"{HERE}.doubling"}
INSIDE = {
    "/inner": {"kind": "masked", "inner": DOUBLING, "mask": "*.weight"},
    "/parts/0": {"kind": "chain", "parts": [DOUBLING, {"kind": "adamw"}]},
    "/transforms/a~1b": {"kind": "partition", "transforms": {"a/b": DOUBLING}, "param_labels": [["*", "a/b"]]},
    "/learning_rate": {"kind": "adamw", "learning_rate": {"cls_path": f"{HERE}.halving", "start": 1}},
    "/inner/parts/1/learning_rate": {
        "kind": "masked",
        "inner": {"kind": "chain", "parts": [SLOW, {"kind": "adamw", "learning_rate": {"cls_path": f"{HERE}.Flat"}}]},
        "mask": "*.weight",
    },
}


def read(**changes):
    spec, problems = check_text(text_of(changed(**changes)))
    assert problems == ()
    return spec


def first_step(spec, trust=()):
    pieces = build(spec, trust=trust)
    state = pieces.training.init(0)
    return state, *pieces.training.step(state, pieces.batches.batch(0, 0))


def test_parts_from_elsewhere_are_called_when_they_are_trusted():
    state, after, metrics = first_step(read(**TARGETS), [HERE])
    assert {"Term", "ForceL2NormLoss"} <= {name.split("/")[1] for name in metrics if name.startswith("loss/")}
    assert after.hook_state.keys() == {"c"}
    assert "doubling" in state.opt_state


@pytest.mark.parametrize("place", TARGETS)
def test_a_part_from_elsewhere_is_neither_imported_nor_built_without_trust(place):
    name = "no_module_of_this_name"
    spec = read(**{place: {"cls_path": f"{name}.x", "argument": 1}})
    assert f"{name}.x" in str(summarize(spec).facts)
    with pytest.raises(TrustError, match=f"/{place}/cls_path: '{name}.x'"):
        build(spec)
    assert name not in sys.modules


@pytest.mark.parametrize(
    ("place", "target", "message"),
    [
        ("strategy/hooks/0", "undeclared", "PS503 /strategy/hooks/0/cls_path: .*declared to return a hook"),
        ("strategy/hooks/0", "Term", "PS503 /strategy/hooks/0/cls_path"),
        ("strategy/hooks/0", "lying", "PS503 /strategy/hooks/0/cls_path: .*returned str"),
        ("strategy/loss/0", "mean", "PS503 /strategy/loss/0/cls_path: .*LossTerm"),
        ("strategy/update/1", "counting", "PS503 /strategy/update/1/cls_path"),
        ("strategy/update/1", "nothing", "PS502"),
        ("strategy/schedule", "undeclared", "PS503 /strategy/schedule/cls_path: .*declared to return a schedule"),
        ("strategy/schedule", "Kept", "PS503 /strategy/schedule/cls_path"),
        ("validation/metrics/0", "Term", "PS503 /validation/metrics/0/cls_path: .*Metric"),
    ],
)
def test_a_target_that_is_not_what_its_place_asks_for_is_refused(place, target, message):
    with pytest.raises(SpecError, match=message):
        build(read(**{place: {"cls_path": f"{HERE}.{target}"}}), trust=[HERE])


def test_a_misspelt_argument_of_a_target_is_refused_with_the_nearest_one():
    with pytest.raises(SpecError, match=r"PS504 /strategy/update/1/fctor: .*did you mean 'factor'"):
        build(read(**{"strategy/update/1": {"cls_path": f"{HERE}.doubling", "fctor": 1}}), trust=[HERE])


@pytest.mark.parametrize("pointer", INSIDE)
def test_a_part_from_elsewhere_can_stand_inside_of_another(pointer):
    place = "strategy/update/2"
    spec = read(**{place: INSIDE[pointer], "strategy/schedule": None if "adamw" not in str(INSIDE[pointer]) else 1e-3})
    assert HERE in str(summarize(spec).facts)
    with pytest.raises(TrustError, match=f"PS501 /{place}{pointer}/cls_path"):
        build(spec)
    before, after, _ = first_step(spec, [HERE])
    assert not all(leaf.equal(dict(tree.items(before.params))[name]) for name, leaf in tree.items(after.params))
    assert check_text(text_of(document_of(spec))).spec == spec


@pytest.mark.parametrize("where", [{"inner": {"kind": "masked"}}, {"inner": {"cls_path": "x"}}, {"inner": {"cls_path": 3}}])
def test_mistakes_in_a_part_inside_of_another_are_reported_where_they_stand(where):
    part = {"kind": "masked", "mask": "*", **where}
    problems = check_text(text_of(changed(**{"strategy/update/2": part, "strategy/schedule": None}))).problems
    assert problems and all(problem.pointer.startswith("/strategy/update/2/inner") for problem in problems)


def test_a_schedule_from_elsewhere_is_the_learning_rate():
    rates = [metrics["optimizer/adamw/lr"].item() for metrics in losses_of(read(**{"strategy/schedule": TARGETS["strategy/schedule"]}), 12)]
    assert rates == [0.01] * 10 + [0.005] * 2


def losses_of(spec, num_steps):
    """The metrics of some steps."""
    pieces = build(spec, trust=[HERE])
    state = pieces.training.init(0)
    found = []
    for _ in range(num_steps):
        state, metrics = pieces.training.step(state, pieces.batches.batch(0, 0))
        found.append(metrics)
    return found


def test_a_hook_whose_decay_is_a_schedule_from_elsewhere_is_described_and_built():
    hook = {"kind": "ema", "decay": {"cls_path": f"{HERE}.Flat", "value": 0.5}}
    spec = read(**{"strategy/hooks/0": hook})
    assert f"{HERE}.Flat" in summarize(spec).facts["hooks"][0]
    assert build(spec, trust=[HERE]).training.hooks[0].name == "ema"


def test_a_layer_is_no_schedule_though_it_needs_no_grant_and_can_be_called():
    with pytest.raises(SpecError, match="PS503 /strategy/schedule/cls_path"):
        build(read(**{"strategy/schedule": {"cls_path": "torch.nn.Identity"}}))


def test_a_metric_from_elsewhere_is_measured():
    pieces = build(read(**{"validation/metrics": [{"cls_path": f"{HERE}.Atoms"}, {"kind": "EnergyErrors"}]}), trust=[HERE])
    atoms, errors = pieces.validation.metrics
    batch = next(iter(pieces.validation.data))
    assert float(atoms.count({}, batch)["atoms"]) == len(batch.positions) and type(errors).__name__ == "EnergyErrors"


def test_groups_of_parameters_have_their_own_chains():
    labels = [["embedding.*", "slow"], ["*", "fast"]]
    part = {"kind": "partition", "transforms": {"slow": SLOW, "fast": FAST}, "param_labels": labels}
    before, after, _ = first_step(read(**{"strategy/update/2": part, "strategy/schedule": 1e-2}))
    moved = {name: float((leaf - dict(tree.items(before.params))[name]).abs().max()) for name, leaf in tree.items(after.params)}
    slow = [most for name, most in moved.items() if name.startswith("embedding")]
    fast = [most for name, most in moved.items() if not name.startswith("embedding")]
    assert 0 < max(slow) < 1e-4 < max(fast)


def test_a_schedule_is_taken_by_a_part_that_is_deep_inside():
    inner = {"kind": "masked", "inner": FAST, "mask": "*.weight"}
    assert read(**{"strategy/update/2": inner}).strategy.update[2].kind == "masked"
    text = text_of(changed(**{"strategy/update/2": {**inner, "inner": SLOW}}))
    assert "no part of update takes it" in check_text(text).problems[0].message


def test_what_is_masked_out_passes_as_it_is():
    part = {"kind": "masked", "inner": {"kind": "scale", "step_size": 0.0}, "mask": "embedding.*"}
    before, after, _ = first_step(read(**{"strategy/update/2": part, "strategy/schedule": None}))
    same = [
        torch.equal(leaf, dict(tree.items(before.params))[name]) for name, leaf in tree.items(after.params) if name.startswith("embedding")
    ]
    assert same == [True]


def test_specs_with_such_parts_come_back_from_their_document():
    part = {"kind": "partition", "transforms": {"a": SLOW}, "param_labels": [["*", "a"]]}
    spec = read(**TARGETS | {"strategy/update/2": part, "strategy/schedule": None})
    assert check_text(text_of(document_of(spec))).spec == spec
