import numpy as np
import pytest

from purestep.reporting.comparison import curve, draw_runs, running_median

from .test_pictures import size_of


def records(values, name="loss/total"):
    return [{"kind": "train", "batch": 10 * i, "step": i, "epoch": 0, name: value} for i, value in enumerate(values)]


def test_a_curve_leaves_out_what_is_missing_or_not_finite():
    places, values = curve([*records([2.0, None, 1.0]), {"kind": "validation", "batch": 30, "step": 3, "epoch": 1}], "loss/total")
    assert (places.tolist(), values.tolist()) == ([0, 20], [2.0, 1.0])


def test_a_curve_is_drawn_against_what_was_asked_for():
    assert curve(records([2.0, 1.0]), "loss/total", "step")[0].tolist() == [0, 1]


def test_the_running_median_hides_a_spike_and_uses_what_there_is_at_the_ends():
    np.testing.assert_array_equal(running_median(np.array([1.0, 3.0, 99.0, 5.0, 7.0]), 3), [2.0, 3.0, 5.0, 7.0, 6.0])


def test_each_metric_has_a_panel(tmp_path):
    both = [*records(np.linspace(9, 1, 50)), *records([3.0, 2.0], "validation/loss/total")]
    runs = {"one": both, "two": records([2.0, 1.0])}
    draw_runs(runs, ["loss/total"], tmp_path / "one.png")
    draw_runs(runs, ["loss/total", "validation/loss/total"], tmp_path / "two.png")
    assert size_of(tmp_path / "two.png")[1] > 1.5 * size_of(tmp_path / "one.png")[1]


def test_a_metric_that_no_run_has_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no run has a finite value of 'accuracy'"):
        draw_runs({"one": records([1.0])}, ["accuracy"], tmp_path / "x.png")
