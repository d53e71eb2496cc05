import base64
from html.parser import HTMLParser

import numpy as np
import pytest

from purestep.reporting import write_webpage

RECORDS = [
    *({"kind": "train", "batch": n, "step": n, "epoch": 0, "loss/total": 2.0 / n, "optimizer/adam/lr": 0.1} for n in range(1, 6)),
    {"kind": "validation", "batch": 5, "step": 5, "epoch": 1, "validation/loss/total": 0.5, "validation/forces/mae": None},
]
VOID = {"meta", "img", "br", "hr", "link", "input"}
REFERRING = {"src", "href", "srcset", "data", "action", "poster", "background", "formaction", "cite", "ping", "xlink:href"}


class Reader(HTMLParser):
    """Keeps what a page refers to, its pictures and its text; complains about tags that do not fit."""

    def __init__(self, text):
        super().__init__()
        self.references, self.open, self.texts, self.tags, self.faults = [], [], [], set(), []
        self.feed(text)
        self.close()
        self.faults += self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.references += [value for name, value in attrs if name in REFERRING]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        self.faults += [] if self.open and self.open[-1] == tag else [tag]
        self.open = self.open[:-1]

    def handle_data(self, data):
        self.texts += [data.strip()] if data.strip() and self.open[-1] != "style" else []


@pytest.fixture
def page(tmp_path):
    generator = np.random.default_rng(0)
    values = generator.normal(size=50)
    path = write_webpage(
        tmp_path / "report.html",
        RECORDS,
        title="A <run> & more",
        facts={"runtime": {"seed": 7, "device": "cpu"}, "argv": ["purestep", "<b>"], "none": None},
        schedule=(np.arange(5), np.linspace(0.1, 0.0, 5)),
        parity_panels={"energy [eV]": (values, values + 0.1)},
        errors_by_element={"H": values, "O": 2 * values},
        error_unit="[eV/Å]",
    )
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_a_page_refers_to_nothing_outside_and_runs_nothing(page):
    found = Reader(page)
    pictures = [reference for reference in found.references if not reference.startswith("#section-")]
    assert all(reference.startswith("data:image/png;base64,") for reference in pictures)
    assert len(pictures) == 4
    assert found.tags.isdisjoint({"script", "link", "iframe", "object", "embed"})
    assert "http:" not in page and "https:" not in page and "@import" not in page and "url(" not in page
    assert "default-src 'none'" in page


def test_the_tags_of_a_page_fit_together(page):
    assert Reader(page).faults == []


def test_the_pictures_of_a_page_are_png(page):
    pictures = [reference for reference in Reader(page).references if reference.startswith("data:")]
    contents = [base64.b64decode(reference.split(",", 1)[1], validate=True) for reference in pictures]
    assert all(content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82") for content in contents)


def test_a_page_tells_metrics_validations_and_facts_and_escapes_them(page):
    texts = Reader(page).texts
    assert texts.count("A <run> & more") == 2  # title and heading
    assert {"runtime.seed", "7", "['purestep', '<b>']", "validation/loss/total", "0.5", "optimizer/adam/lr"} <= set(texts)
    assert "<b>" not in page


def test_a_page_of_a_run_without_records_has_facts_alone(tmp_path):
    with open(write_webpage(tmp_path / "a.html", [], title="empty", facts={"a": True}), encoding="utf-8") as file:
        found = Reader(file.read())
    assert found.references == [] and found.texts == ["empty", "empty", "Facts", "fact", "value", "a", "True"]


def test_a_long_list_of_validations_is_shown_in_part(tmp_path):
    records = [{"kind": "validation", "batch": n, "step": n, "epoch": n, "validation/loss/total": 1.0} for n in range(500)]
    with open(write_webpage(tmp_path / "a.html", records, title="long"), encoding="utf-8") as file:
        text = file.read()
    assert "Validation (50 of 500)" in text and text.count("<tr>") == 51
