"""Pages as a browser shows them: nothing is fetched, nothing fails, the pictures are there, the numbers are those of the run."""

import pytest

from purestep.reporting import read_metrics
from purestep.reporting.comparison_page import write_comparison
from tests.browser import browsing, find_browser
from tests.cli.calling import purestep
from tests.spec.examples import changed, text_of

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (Debian: apt-get install chromium)")

TABLES = """Object.fromEntries([...document.querySelectorAll("h2")].map(heading => [heading.innerText,
    [...heading.nextElementSibling.querySelectorAll("tr")].map(row => [...row.cells].map(cell => cell.innerText))]))"""
PICTURES = "Promise.all([...document.images].map(image => image.decode().then(() => [image.naturalWidth > 300, image.alt !== ''])))"
OVERFLOW = "document.scrollingElement.scrollWidth - innerWidth"
ABOVE = "innerHeight - document.querySelector(location.hash).getBoundingClientRect().bottom"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of three updates, by the command line."""
    here = tmp_path_factory.mktemp("run")
    (here / "spec.json").write_text(text_of(changed(**{"output/checkpoints": None})))
    assert purestep("spec", "run", here / "spec.json", "--run-dir", here / "run", "--progress", "none").exit_code == 0
    return here / "run"


@pytest.fixture
def page(tmp_path):
    with browsing(find_browser(), str(tmp_path / "profile")) as page:
        yield page


def complaints(page):
    """What a browser has to say against a page."""
    return page.names("Log.entryAdded") + page.names("Runtime.consoleAPICalled") + page.names("Runtime.exceptionThrown")


def requests(page):
    """Where a page asked for something, what it holds itself left out."""
    urls = [request["request"]["url"] for request in page.names("Network.requestWillBeSent")]
    return [url for url in urls if not url.startswith("data:")]


def test_the_report_of_a_run_is_whole_in_a_browser_and_asks_for_nothing(page, run_dir):
    url = (run_dir / "report.html").as_uri()
    page.open(url)
    assert page.evaluate(PICTURES) == [[True, True]] * 4
    assert (complaints(page), requests(page)) == ([], [url])
    assert page.evaluate("document.title") == "tiny"
    for width in (1200, 360):  # a screen and a telephone
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        assert page.evaluate(OVERFLOW) <= 0


def test_the_tables_of_a_report_have_the_numbers_of_the_log(page, run_dir):
    page.open((run_dir / "report.html").as_uri())
    tables, records = page.evaluate(TABLES), read_metrics(run_dir / "metrics.jsonl")
    last, validated = ([record for record in records if record["kind"] == kind][-1] for kind in ("train", "validation"))
    shown = dict(tables["Last report of training"][1:])
    assert shown["batch"] == "3"
    assert {name: shown[name] for name in last if "/" in name} == {name: f"{value:.6g}" for name, value in last.items() if "/" in name}
    headings, row = tables["Validation"]
    assert dict(zip(headings, row, strict=True))["validation/loss/total"] == f"{validated['validation/loss/total']:.6g}"
    assert dict(tables["Facts"][1:])["runtime.deterministic"] in ("True", "False")


def test_the_links_of_a_report_lead_to_its_sections(page, run_dir):
    page.open((run_dir / "report.html").as_uri())
    headings = page.evaluate("[...document.querySelectorAll('h2')].map(heading => heading.innerText)")
    assert page.evaluate("[...document.querySelectorAll('nav a')].map(link => link.innerText)") == headings
    for place, heading in enumerate(headings, start=1):
        page.evaluate("scrollTo(0, 0)")
        page.click(f"nav a:nth-child({place})")
        assert page.evaluate("document.querySelector(location.hash).innerText") == heading
        assert page.evaluate(ABOVE) > 0


def test_the_page_of_several_runs_is_whole_in_a_browser(page, run_dir, tmp_path):
    records = read_metrics(run_dir / "metrics.jsonl")
    runs = {"a<b": records, "two": records[:1]}
    path = write_comparison(tmp_path / "two.html", runs, ["loss/total", "validation/loss/total"])
    page.open(f"file://{path}")
    assert page.evaluate(PICTURES) == [[True, True]] * 2
    assert (complaints(page), requests(page)) == ([], [f"file://{path}"])
    headings, first, second = page.evaluate(TABLES)["Where they stand"]
    assert [headings[0], first[0], second[0]] == ["run", "a<b", "two"]
    assert first[headings.index("step")] == "3" and second[headings.index("loss/total, latest")] == f"{records[0]['loss/total']:.6g}"


def test_a_page_that_fails_or_asks_for_something_is_noticed(page, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<title>bad</title><img src='gone.png'><script>console.error('no')</script>")
    page.open(path.as_uri())
    assert len(complaints(page)) == 2  # the picture that is not there, and the script
    assert requests(page) == [path.as_uri(), (tmp_path / "gone.png").as_uri()]
