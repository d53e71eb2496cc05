import pytest

from purestep import schedules


def test_plot_shows_the_range_the_counts_and_the_shape():
    text = schedules.plot(schedules.linear(0.0, 1.0, 7), 8, width=4, height=2)
    assert text.splitlines() == ["1 |⠀⠀⡠⠊", "0 |⡠⠊⠀⠀", "   0  7"]


def test_plot_of_a_constant_is_a_line_at_the_bottom():
    assert schedules.plot(schedules.constant(0.5), 100, width=3, height=1).splitlines() == ["0.5 |⣀⣀⣀", "     0 99"]


def test_plot_of_a_single_step_is_possible():
    assert schedules.plot(schedules.constant(0.5), 1, width=2, height=1).splitlines() == ["0.5 |⣀⣀", "     0"]


def test_plot_refuses_a_run_without_steps():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        schedules.plot(schedules.constant(1.0), 0)
