"""Every built page in a real browser that can reach nothing but the page's own files."""

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import chapters
import pytest
from playwright.sync_api import BrowserContext, Page, Route

from .conftest import without

HTML = chapters.ROOT / "_build" / "html"
AXE = chapters.BOOK / "node_modules" / "axe-core" / "axe.min.js"
# axe looks long at every element. Words of code in a colour that was seen already, the strokes of formulas,
# the insides of their MathML, for which it has no rule, and rows and signatures beyond the tenth cost time.
# And a colour is judged when it has changed, not on its way.
FEWER_ELEMENTS = """() => {
  const still = document.head.appendChild(document.createElement("style"));
  still.textContent = "* { transition: none !important; }";
  const seen = new Set();
  const words = [...document.querySelectorAll(".highlight span, .sig-param span")].filter(word => {
    const style = getComputedStyle(word);
    const look = [word.className, style.color, style.backgroundColor].join();
    return seen.has(look) || !seen.add(look);
  });
  words.forEach(word => word.replaceWith(...word.childNodes));
  document.querySelectorAll("mjx-container > svg").forEach(formula => formula.replaceChildren());
  document.querySelectorAll("mjx-container math").forEach(formula => formula.replaceChildren("x"));
  const more = "article :is(tr, dl.py):nth-of-type(n + 11)";
  document.querySelectorAll(more).forEach(one => one.remove());
}"""
# Faults of impact serious or critical; the second theme has the same elements in other colours.
FAULTS = """async rules => {
  const only = rules.length ? {runOnly: rules} : {};
  const found = await axe.run(document, {resultTypes: ["violations"], ...only});
  return found.violations.filter(fault => ["serious", "critical"].includes(fault.impact)).flatMap(fault =>
    fault.nodes.map(node => `${fault.id}: ${node.target} ${node.failureSummary}`));
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    if not (HTML / "index.html").exists():
        without("no built book: make book")
    if not (HTML / "_static" / "tex-svg-full.js").exists():
        without("the book was built without npm: its pages load MathJax from a CDN")
    handler = functools.partial(QuietHandler, directory=str(HTML))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass
class Visit:
    """What happened while a page was opened."""

    page: Page
    elsewhere: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="module", params=chapters.pages())
def visit(request: pytest.FixtureRequest, site: str, browser: BrowserContext) -> Iterator[Visit]:
    page = browser.new_page()
    seen = Visit(page)

    def block_other_hosts(route: Route) -> None:
        if route.request.url.startswith((f"{site}/", "data:", "blob:")):
            route.continue_()
        else:
            seen.elsewhere.append(route.request.url)
            route.abort()

    page.route("**/*", block_other_hosts)
    page.on("requestfailed", lambda r: seen.failed.append(r.url))
    page.on("response", lambda r: seen.failed.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    page.on("console", lambda m: seen.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: seen.errors.append(str(e)))
    page.goto(f"{site}/{request.param}.html", wait_until="networkidle")
    page.evaluate("window.MathJax?.startup?.promise")
    yield seen
    page.close()


def test_nothing_from_another_host(visit: Visit) -> None:
    assert not visit.elsewhere


def test_no_failed_request(visit: Visit) -> None:
    assert not visit.failed


def test_no_console_error(visit: Visit) -> None:
    assert not visit.errors


def test_a_chapter_is_found_by_its_number(visit: Visit) -> None:
    name = Path(urlsplit(visit.page.url).path).stem
    title = visit.page.locator("article h1").first.inner_text()
    if name[:2].isdigit():
        beside = visit.page.locator("nav.bd-links li.current > a").first.text_content() or ""
        assert title.startswith(f"{int(name[:2])}. ")
        assert beside.strip().startswith(f"{int(name[:2])}. ")
    else:
        assert not title[0].isdigit()


def test_nothing_is_wider_than_its_box(visit: Visit) -> None:
    """At 1200 px what a chapter prints or tabulates does not scroll; nor is a formula cut off at 400.

    The other pages also have long commands, and long names of code.
    """
    wide = "e => e.filter(b => b.scrollWidth > b.clientWidth + 1 && !b.closest('.toggle-hidden'))"
    wide += ".map(b => b.textContent.slice(0, 200))"
    visit.page.set_viewport_size({"width": 1200, "height": 900})
    chapter = Path(urlsplit(visit.page.url).path).stem[:2].isdigit()
    boxes = "article :is(pre, div.cell_output, div.text_html, .pst-scrollable-table-container)"
    assert not chapter or not visit.page.locator(boxes).evaluate_all(wide)
    visit.page.set_viewport_size({"width": 400, "height": 900})
    formulas = visit.page.locator("article div.math").evaluate_all(wide)
    visit.page.set_viewport_size({"width": 1280, "height": 720})
    assert not formulas


def test_mathematics_is_rendered(visit: Visit) -> None:
    raw = "e => e.filter(m => !m.querySelector('mjx-container svg')).map(m => m.textContent)"
    assert not visit.page.locator(".math").evaluate_all(raw)
    # An error, or a command that MathJax does not know and prints in red.
    wrong = "[data-mjx-error], mjx-container [data-mml-node=mtext][fill=red]"
    assert not visit.page.locator(wrong).evaluate_all("e => e.map(m => m.closest('.math').outerHTML)")
    # Dollars or brackets that never became mathematics; code may have them.
    left = "e => { e = e.cloneNode(true); e.querySelectorAll('pre, code, script').forEach(c => c.remove());"
    text = visit.page.locator("article").evaluate(left + " return e.textContent; }")
    assert not any(mark in text for mark in ("$", r"\(", r"\["))


def test_tables_are_no_lines_of_text(visit: Visit) -> None:
    # what a cell shows as Markdown is read without tables, unless its metadata ask for them
    paragraphs = visit.page.locator("article p").all_text_contents()
    assert not [text for text in paragraphs if text.lstrip().startswith("| ")]


def test_pictures_are_there_and_described(visit: Visit) -> None:
    pictures = visit.page.locator("img").evaluate_all(
        "e => e.map(i => ({src: i.src, alt: i.alt.trim(), drawn: i.complete && i.naturalWidth > 0}))"
    )
    assert not [p["src"] for p in pictures if not p["drawn"]]
    # Without a description Sphinx writes the file's path.
    assert not [p["src"] for p in pictures if not p["alt"] or p["alt"].endswith(Path(p["src"]).name)]


def test_sliders_change_the_picture(visit: Visit) -> None:
    for slider in visit.page.locator(".floral-slider").all():
        seen = []
        for key in ("Home", "End"):
            slider.locator("input[type=range]").press(key)
            seen.append(
                (slider.locator("span").inner_text(), slider.locator("img:visible").evaluate("i => i.src"))
            )
        (first, first_picture), (last, last_picture) = seen
        assert first != last
        assert first_picture != last_picture


def test_explorers_follow_their_sliders(visit: Visit) -> None:
    for explorer in visit.page.locator(".floral-explorer").all():
        explorer.locator("summary").click()
        for control in explorer.locator("input, select").all():
            table = explorer.locator("table")
            before = table.inner_text()
            control.press("ArrowRight")
            if table.inner_text() == before:  # it stood at the last stop
                control.press("ArrowLeft")
            assert table.inner_text() != before


def test_no_widget_waits_for_a_kernel(visit: Visit) -> None:
    assert "application/vnd.jupyter.widget" not in visit.page.content()


def test_the_book_has_mathematics_pictures_and_sliders(site: str) -> None:
    """The tests above hold on an empty page as well."""
    html = "".join((HTML / f"{page}.html").read_text(encoding="utf-8") for page in chapters.pages())
    assert 'class="math notranslate' in html
    assert "<img" in html
    assert 'class="floral-slider"' in html
    assert 'class="floral-explorer"' in html


def test_search_finds_preconditioning(site: str, browser: BrowserContext) -> None:
    page = browser.new_page()
    page.goto(f"{site}/search.html?q=preconditioning")
    page.locator("#search-results li a[href^='09-preconditioning.html']").first.wait_for()
    page.evaluate("localStorage.clear()")  # or pages opened later mark the word
    page.close()


class Anchors(HTMLParser):
    """What a page can be entered by, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = {"", "top"}  # a browser knows these everywhere
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names.update(given[key] or "" for key in ("id", "name") if key in given)
        if tag == "a" and given.get("href"):
            self.links.add(str(given["href"]))


def test_links_inside_the_book_lead_somewhere(site: str) -> None:
    pages = {path.resolve(): Anchors(path.read_text(encoding="utf-8")) for path in HTML.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if not urlsplit(address).scheme and not link.startswith("//"):
                file = unquote(urlsplit(address).path)
                target = (path.parent / file).resolve() if file else path
                names = pages[target].names if target in pages else {""}
                if not target.is_file() or unquote(anchor) not in names:
                    broken.append(f"{path.name}: {link}")
    assert not broken


# The last one: it takes parts of the page away.
def test_no_serious_fault_for_who_reads_otherwise(visit: Visit) -> None:
    """By axe-core: screen readers, keyboards, weak eyes."""
    if not AXE.exists():
        without("axe-core is not there: make book, with npm")
    visit.page.evaluate(FEWER_ELEMENTS)
    visit.page.evaluate(f"{AXE.read_text(encoding='utf-8')}; 0")
    faults = {}
    for theme, rules in (("light", []), ("dark", ["color-contrast", "link-in-text-block"])):
        visit.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        visit.page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
        faults[theme] = visit.page.evaluate(FAULTS, rules)
    visit.page.emulate_media(color_scheme="light")
    assert faults == {"light": [], "dark": []}
