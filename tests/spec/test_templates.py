"""Specs to begin with."""

import pytest

from purestep.cli.documents import dump
from purestep.spec.doubts import doubts
from purestep.spec.parts import learning_rate_curve
from purestep.spec.reading import check_text
from purestep.spec.templates import PRESETS, template
from tests.cli.calling import purestep


@pytest.mark.parametrize("num_steps", [1, 60, 150, 1000, 100_000])
def test_the_average_forgets_the_initial_weights_and_the_checkpoints_fit_whatever_the_length(num_steps):
    spec = template(["a.zarr"], "run", num_steps=num_steps)
    (average,) = spec["strategy"]["hooks"]
    assert average["debias"] and 0.9 <= average["decay"] <= 0.999
    assert spec["output"]["checkpoints"]["every_n_steps"] <= max(1, num_steps // 2)


def test_a_run_of_epochs_has_a_checkpoint_of_each():
    assert template(["a.zarr"], "run", num_epochs=3)["output"]["checkpoints"] == {"every_n_epochs": 1, "keep_last": 3}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("num_steps", [1, 2, 20, 5000])
def test_every_preset_is_a_spec_without_problems_or_doubts_whatever_the_length(preset, num_steps):
    spec, problems = check_text(dump(template(["a.zarr"], "run", num_steps=num_steps, preset=preset)))
    assert problems == ()
    assert list(doubts(spec, num_steps)) == []


def test_the_rate_of_wsd_rises_stands_and_falls():
    spec = check_text(dump(template(["a.zarr"], "run", num_steps=1000, learning_rate=0.5, preset="adamw-wsd"))).spec
    rate = learning_rate_curve(spec)
    assert [float(rate(count)) for count in (0, 25, 50, 400, 799, 800, 850, 1000)] == [0.0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.25, 0.0]


def test_wsd_is_refused_for_a_run_whose_updates_nobody_has_counted():
    words = ["train", "init", "--dataset", "a.zarr", "--output-dir", "run", "--out", "/dev/null/x", "--num-epochs", 3]
    done = purestep(*words, "--preset", "adamw-wsd")
    assert done.exit_code == 2
    assert "--preset adamw-wsd needs --num-steps" in done.stderr
    with pytest.raises(ValueError, match="needs the number of updates"):
        template(["a.zarr"], "run", num_epochs=3, preset="adamw-wsd")
