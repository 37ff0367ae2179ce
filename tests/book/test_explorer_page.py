"""The explorer's script in a real browser: lines, keyboard, mouse, themes, and a narrow screen."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from floral_lite.explorer import Explorer, explore

NASTY = '</script><script>throw Error("in")</script> <b> & "quoted" \' `${1}`'
RANKS = [1, 2, 8]
PARTS = ["half", "all"]
METHODS = ["FedAvg", NASTY]
FIRST = re.compile(r"FedAvg \(0, ")  # the name of the first point


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    """Two lines with a band over 7 rounds, one gap, for three ranks and two parts."""
    rows = [
        (rank, part, method, step, 1234.5678 / rank + step**2 * (1 + m) - 20 * (part == "all"))
        for rank in RANKS
        for part in PARTS
        for m, method in enumerate(METHODS)
        for step in range(7)
    ]
    frame = pd.DataFrame(rows, columns=["rank", "part", "method", "step", "loss"])
    frame = frame.assign(low=frame["loss"] - 9, high=frame["loss"] + 1)
    frame.loc[3, "loss"] = np.nan
    return explore(
        frame,
        x="step",
        y="loss",
        sliders=["rank", "part"],
        title=NASTY,
        about={NASTY: NASTY, "file": "folder/" * 20},
        colour="method",
        band=("low", "high"),
        labels={"rank": NASTY, "step": NASTY},
        start={"rank": 2},
    )


@pytest.fixture(scope="module")
def page(
    explorer: Explorer, browser: BrowserContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The saved page; whatever it asks for or complains about fails the test that sees it first."""
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    explorer.save(path)
    opened = browser.new_page()
    trouble: list[str] = []
    opened.on("console", lambda message: trouble.append(message.text))
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("request", lambda request: trouble.append(request.url))
    opened.add_init_script(
        "window.shifted = 0; new PerformanceObserver(list => { for (const entry of list.getEntries())"
        " window.shifted += entry.value; }).observe({type: 'layout-shift', buffered: true});"
    )
    opened.goto(path.as_uri())
    yield opened
    elsewhere = [said for said in trouble if said != path.as_uri() and not said.startswith("data:")]
    assert not elsewhere
    opened.close()


def stand(page: Page, **stops: object) -> None:
    """Move the controls with the keyboard alone."""
    slider = page.locator("input")
    slider.press("Home")
    for _ in range(RANKS.index(stops["rank"])):  # type: ignore[arg-type]
        slider.press("ArrowRight")
    page.locator("select").press(str(stops["part"])[0])


def table(page: Page) -> pd.DataFrame:
    if page.locator("details:not([open])").count():
        page.locator("summary").press("Enter")
    page.locator("tbody tr").first.wait_for()  # a browser tells of an opened fold a little later
    rows = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(c => c.textContent))"
    )
    read: pd.DataFrame = pd.DataFrame(rows, columns=["method", "step", "loss", "low", "high"])
    plain = {"\N{EN DASH}": "nan", "\N{MINUS SIGN}": "-", ",": ""}
    columns = ["step", "loss", "low", "high"]
    read[columns] = read[columns].replace(plain, regex=True).astype(float)
    return read


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("rank", RANKS)
def test_every_combination_shows_the_frames_rows(
    page: Page, explorer: Explorer, rank: int, part: str
) -> None:
    stand(page, rank=rank, part=part)
    wanted = explorer.rows({"rank": rank, "part": part}).reset_index(drop=True)
    found = table(page)
    pd.testing.assert_frame_equal(found, wanted[found.columns], rtol=1e-4, check_dtype=False)
    assert page.locator("strong").inner_text() == str(rank)
    assert page.locator(".scroll.more").count()  # 14 rows go on below the box
    assert page.locator("input").get_attribute("aria-valuetext") == str(rank)
    assert f"part = {part}" in str(page.get_by_role("img").get_attribute("aria-label"))
    # Pixels are an affine map of the numbers; a gap parts the first line in two.
    drawn = page.locator(".plot polyline").evaluate_all("e => e.map(line => line.getAttribute('points'))")
    assert len(drawn) == 2 + int(wanted["loss"].isna().any())
    pixels = np.array([point.split(",") for line in drawn for point in line.split()], dtype=float)
    seen = wanted.dropna()
    for axis, column in enumerate(("step", "loss")):
        slope, offset = np.polyfit(seen[column], pixels[:, axis], 1)
        np.testing.assert_allclose(pixels[:, axis], slope * seen[column] + offset, atol=0.11)
        assert slope * (-1) ** axis > 0


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([12_345_678, 12_345_678, 12_345_678], ""),  # bytes, the same in every round
        ([1234567.8, 1234568.1, 1234569.4], ""),
        ([1230.25, 1231.5, 1232.9], ""),
        ([1.0, 0.999987, 0.999974], ""),
        ([0.95, 0.97, 0.99], "y"),
    ],
)
def test_numbers_close_together_and_far_from_zero_are_shown_apart(
    browser: BrowserContext, tmp_path: Path, values: list[float], log: str
) -> None:
    frame = pd.DataFrame({"rank": 1, "step": range(3), "loss": values})
    explorer = explore(frame, x="step", y="loss", sliders=["rank"], title="", about="", log=log)
    explorer.save(tmp_path / "page.html")
    opened = browser.new_page()
    opened.goto((tmp_path / "page.html").as_uri())
    bend = np.log10 if log else np.array
    height = opened.locator(".plot").evaluate("plot => plot.clientHeight")
    low, high = bend(explorer.limits("y"))
    places = 8 + (height - 32) * (high - bend(values)) / (high - low)  # between the plot's margins
    points = str(opened.locator(".plot polyline").get_attribute("points"))
    assert [float(point.split(",")[1]) for point in points.split()] == pytest.approx(places, abs=0.06)
    written = opened.locator(".plot text[text-anchor=end]").all_text_contents()
    ticks = [float(text.replace(",", "")) for text in written]
    assert len(ticks) > 2
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=1e-6)
    opened.locator("summary").click()
    opened.locator("td").first.wait_for()
    cells = [float(cell.replace(",", "")) for cell in opened.locator("td:last-child").all_inner_texts()]
    assert cells == pytest.approx(values, rel=0, abs=1e-4 * abs(np.subtract(*explorer.limits("y"))))
    opened.close()


def test_axes_stand_still_while_the_lines_move(page: Page) -> None:
    labels = []
    for rank in RANKS:
        stand(page, rank=rank, part="half")
        labels.append(page.locator(".plot text").all_inner_texts())
    assert labels[0] == labels[1] == labels[2]
    assert len(labels[0]) > 8


def test_mouse_moves_the_slider_and_names_a_point(page: Page) -> None:
    slider = page.locator("input")
    place = slider.bounding_box()
    assert place is not None
    slider.click(position={"x": place["width"] - 2, "y": place["height"] / 2})
    assert page.locator("strong").inner_text() == "8"
    marker = page.locator(".marker").first
    marker.hover(force=True)
    expect(page.locator(".tip")).to_have_text(FIRST)


def test_a_finger_names_a_point(page: Page) -> None:
    stand(page, rank=1, part="half")
    assert page.locator(".tip").is_hidden()
    page.locator(".marker").first.tap(force=True)
    expect(page.locator(".tip")).to_have_text(FIRST)


def test_a_finger_that_is_held_names_a_point_that_stays_when_it_is_lifted(page: Page) -> None:
    stand(page, rank=8, part="half")
    plot, tip = page.locator(".plot"), page.locator(".tip")
    assert tip.is_hidden()
    place = page.locator(".marker").first.bounding_box()
    assert place is not None
    finger = {"clientX": place["x"], "clientY": place["y"], "pointerType": "touch"}
    for kind in ("pointerdown", "pointerleave"):
        plot.dispatch_event(kind, finger)
        assert tip.is_visible()
        assert tip.inner_text().startswith("FedAvg (0, ")
    plot.dispatch_event("pointerleave", {"pointerType": "mouse"})
    assert tip.is_hidden()


def test_controls_are_named_for_a_screen_reader(page: Page) -> None:
    assert page.get_by_role("slider", name=NASTY, exact=True).count() == 1
    assert page.get_by_role("combobox", name="part").count() == 1
    assert page.get_by_role("group", name=NASTY, exact=True).count() == 1
    table(page)
    assert page.get_by_role("columnheader").all_inner_texts() == ["method", NASTY, "loss", "low", "high"]


def test_no_text_becomes_markup(page: Page) -> None:
    assert page.locator("b").count() == 0
    for place in (".heading", "dt:first-of-type", "dd:first-of-type", ".keys li:last-child", ".below"):
        assert page.locator(place).text_content() == NASTY


def contrast(page: Page, selector: str, part: str) -> float:
    """WCAG's contrast of an element's colour with the page's background, as the browser paints both."""
    paint = """([selector, part]) => {
      const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const colour = getComputedStyle(document.querySelector(selector))[part];
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      return [dark ? "#121212" : "#ffffff", colour].map(one => {
        canvas.fillStyle = one;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
      });
    }"""
    colours = np.array(page.evaluate(paint, [selector, part])) / 255
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    darker, lighter = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return float((lighter + 0.05) / (darker + 0.05))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_stand_out_in_both_themes(page: Page, theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    assert contrast(page, ".heading", "color") > 7
    assert contrast(page, ".plot text", "fill") > 7
    for line in range(len(METHODS)):
        assert contrast(page, f".keys li:nth-child({line + 1}) .line", "stroke") > 3
    page.emulate_media(color_scheme="light")


INSIDE = """labels => labels.every(label => {
  const [own, plot] = [label, label.ownerSVGElement].map(one => one.getBoundingClientRect());
  return own.left >= plot.left - 1 && own.right <= plot.right + 1 && own.bottom <= plot.bottom + 1;
})"""


@pytest.mark.parametrize("width", [400, 1200])
def test_every_width_shows_all_without_scrolling(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_function(
        "(p => p.clientWidth === p.firstChild.viewBox.baseVal.width)(document.querySelector('.plot'))"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    labels = page.locator(".plot text")
    assert labels.evaluate_all(INSIDE)
    height = labels.first.bounding_box()
    assert height is not None
    assert height["height"] > 10


def test_nothing_jumps_when_the_script_begins(page: Page) -> None:
    page.reload()
    page.wait_for_selector(".plot polyline")
    page.wait_for_timeout(100)
    assert page.evaluate("window.shifted") == 0
