import struct
import sys

import numpy as np
import pytest

import purestep as ps
from purestep.reporting import learning_curves, parity, sample_schedule, schedule_preview


def size_of(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:24])


def test_learning_curves_are_drawn_with_gaps_where_nothing_finite_was_logged(tmp_path):
    records = [
        {"kind": "train", "batch": 1, "loss/total": 2.0, "optimizer/adam/lr": 0.1},
        {"kind": "train", "batch": 2, "loss/total": None, "optimizer/adam/lr": 0.1},
        {"kind": "train", "batch": 3, "loss/total": 1.0, "optimizer/adam/lr": 0.05},
        {"kind": "validation", "batch": 3, "validation/loss/total": 1.5},
    ]
    path = tmp_path / "curve.png"
    assert learning_curves(records, path) == str(path)
    assert min(size_of(path)) > 500


def test_learning_curves_of_an_empty_log_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no record of kind 'train'"):
        learning_curves([], tmp_path / "curve.png")


def test_parity_draws_a_panel_for_each_quantity(tmp_path):
    values = np.linspace(-1.0, 1.0, 5)
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    parity({"energy": (values, values + 0.1)}, one)
    parity({"energy": (values, values + 0.1), "force": (np.zeros(3), np.zeros(3))}, two)
    assert size_of(two)[0] == 2 * size_of(one)[0]


def test_a_schedule_is_sampled_at_its_ends_and_drawn(tmp_path):
    counts, values = sample_schedule(ps.schedules.linear(1.0, 0.0, 1000), 1001, num_points=11)
    assert counts.tolist() == list(range(0, 1001, 100))
    # a float64 difference of two numbers near 1
    np.testing.assert_allclose(values, 1.0 - counts / 1000, atol=1e-15)
    assert sample_schedule(ps.schedules.linear(1.0, 0.0, 2), 3)[0].tolist() == [0, 1, 2]
    schedule_preview((counts, values), tmp_path / "lr.png")
    assert min(size_of(tmp_path / "lr.png")) > 300


def test_pictures_do_not_load_pyplot(tmp_path):
    loaded = "matplotlib.pyplot" in sys.modules
    parity({"energy": (np.zeros(2), np.ones(2))}, tmp_path / "parity.png")
    assert ("matplotlib.pyplot" in sys.modules) is loaded
