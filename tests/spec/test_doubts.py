"""Warnings about runs that would start, and disappoint."""

import pytest
import torch

from purestep.spec.doubts import doubts, idle_updates
from purestep.spec.parts import make_optimizer
from purestep.spec.reading import check_text
from purestep.spec.summary import summarize
from tests.spec.examples import GONE, changed, text_of


def spec_of(**changes):
    spec, problems = check_text(text_of(changed(**changes)))
    assert problems == ()
    return spec


def codes(**changes):
    spec = spec_of(**changes)
    return [found.code for found in doubts(spec, spec.strategy.num_steps)]


DECAY = {"kind": "add_decayed_weights", "weight_decay": 0.1}
COSINE = {"kind": "cosine_decay", "init_value": 0.01, "decay_steps": 100}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"dataset/split": GONE, "dataset/validation_split": GONE, "validation": GONE}, ["PS314"]),
        ({"strategy/hooks/0": {"kind": "ema", "decay": 0.999}}, ["PS315"]),
        ({"strategy/hooks/0": {"kind": "ema", "decay": 0.3}}, []),  # 0.3 ** 3 is less than 5 %
        ({"strategy/hooks/0": {"kind": "ema", "decay": 0.3, "update_every": 2}}, ["PS315"]),
        ({"strategy/hooks/0": {"kind": "swa"}}, []),
        ({"strategy/schedule": COSINE, "strategy/num_steps": 100}, []),
        ({"strategy/schedule": COSINE, "strategy/num_steps": 155}, ["PS316"]),
        ({"strategy/schedule": {**COSINE, "alpha": 0.1}, "strategy/num_steps": 155}, []),
        ({"strategy/schedule": 0.01}, []),
        ({"strategy/update": [{"kind": "adamw"}, DECAY]}, ["PS308"]),
        ({"strategy/update": [{"kind": "scale_by_adam"}, DECAY, {"kind": "scale_by_learning_rate"}]}, []),
        ({"strategy/update": [{"kind": "scale_by_adam"}, {"kind": "scale_by_learning_rate"}, {"kind": "identity"}, DECAY]}, ["PS308"]),
    ],
)
def test_what_would_disappoint_is_warned_of_and_nothing_else(changes, expected):
    assert codes(**changes) == expected


def test_decay_after_a_step_makes_weights_grow_as_the_warning_says():
    spec = spec_of(**{"strategy/update": [{"kind": "sgd"}, DECAY]})
    optimizer, params = make_optimizer(spec.strategy), {"w": torch.ones(2)}
    updates, _ = optimizer.update({"w": torch.zeros(2)}, optimizer.init(params), params)
    assert (updates["w"] > 0).all()
    assert next(doubts(spec, None)).message.startswith("decay that is added after sgd")


def test_idle_updates_are_counted_and_the_field_to_stretch_is_named():
    spec = spec_of(**{"strategy/schedule": COSINE, "strategy/num_steps": 155})
    (whole,), (rest,) = idle_updates(spec, 0, 155), idle_updates(spec, 120, 155)
    assert whole.pointer == rest.pointer == "/strategy/schedule/decay_steps"
    assert "from update 100 to the end at 155" in whole.message
    assert "from update 120 to the end at 155" in rest.message


def test_a_report_says_the_weights_that_the_terms_have_in_the_sum():
    loss = [{"kind": "EnergyMAELoss"}, {"kind": "ForceL2NormLoss", "weight": 3.0}]
    assert summarize(spec_of(**{"strategy/loss": loss})).facts["loss"] == ["0.25 * EnergyMAELoss()", "0.75 * ForceL2NormLoss()"]
    plain = summarize(spec_of(**{"strategy/loss": loss, "strategy/normalize_weights": False}))
    assert plain.facts["loss"] == ["1 * EnergyMAELoss()", "3 * ForceL2NormLoss()"]
    assert summarize(spec_of()).facts["loss"][-1].endswith("each weight divided by the sum of all")
