"""Sliders over a frame: the rows they pick, the figure, the numbers inside a page, and what is refused."""

import itertools
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ipywidgets
import matplotlib.colors
import numpy as np
import pandas as pd
import pytest
from IPython.display import HTML

import floral_lite
from floral_lite import InputError, plots
from floral_lite.explorer import Explorer, explore_figure, page
from floral_lite.on_page import STATIC_VARIABLE, WIDGET
from floral_lite.plots.style import DASHES, as_html

RANKS = [1, 4, 16]
TASKS = ["rotate", "label shift"]
METHODS = ["FedAvg", "FLoRAL"]
OWN = ["rank", "task", "method", "step", "loss"]


@pytest.fixture
def frame() -> pd.DataFrame:
    """Loss with a band over five steps, for each rank, task and method; the ranks do not come in order."""
    rows = [
        (rank, task, method, step, rank / (1 + step) + len(task) + len(method) / 3)
        for rank, task, method in itertools.product([4, 16, 1], TASKS, METHODS)
        for step in range(5)
    ]
    made = pd.DataFrame(rows, columns=OWN)
    return made.assign(low=made["loss"] - 0.1, high=made["loss"] + 0.2)


def make(frame: pd.DataFrame, **changes: Any) -> Explorer:
    options = {
        "x": "step",
        "y": "loss",
        "sliders": ["rank", "task"],
        "colour": "method",
        "title": "Loss",
        "about": "made up",
        **changes,
    }
    return floral_lite.explore(frame, **options)


class Reader(HTMLParser):
    """The tags of a page, and the texts of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


def decode(html: str) -> dict[str, Any]:
    """The numbers inside a page, as its script reads them."""
    read: dict[str, Any] = json.loads(Reader(html).scripts[0])
    return read


def test_stops_and_start(frame: pd.DataFrame) -> None:
    explorer = make(frame, start={"rank": 16})
    assert explorer.stops == {"rank": RANKS, "task": TASKS}  # numbers rise, words stay as they came
    assert explorer.chosen == {"rank": 16, "task": "rotate"}
    assert make(frame).chosen == {"rank": 1, "task": "rotate"}
    # truth values have no order
    assert make(frame.assign(task=frame["task"] == "rotate")).stops["task"] == [True, False]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("rank", RANKS)
def test_figure_draws_the_chosen_rows(frame: pd.DataFrame, rank: int, task: str) -> None:
    explorer = make(frame, band=("low", "high"), labels={"loss": "test loss (nats)"})
    made = explore_figure(explorer, {"rank": rank, "task": task})
    (axis,) = made.axes
    assert axis.get_xlabel() == "step"
    assert axis.get_ylabel() == "test loss (nats)"
    assert (axis.get_xlim(), axis.get_ylim()) == (explorer.limits("x"), explorer.limits("y"))
    assert [text.get_text() for text in made.legends[0].get_texts()] == METHODS
    chosen = frame[(frame["rank"] == rank) & (frame["task"] == task)]
    lines = zip(METHODS, axis.lines, axis.collections, ("-", "--"), plots.COLOURS, strict=False)
    for method, line, band, dash, colour in lines:
        rows = chosen[chosen["method"] == method]
        np.testing.assert_array_equal(line.get_xydata(), rows[["step", "loss"]])
        corners = band.get_paths()[0].vertices
        for column in ("low", "high"):
            assert {tuple(row) for row in rows[["step", column]].to_numpy()} <= {tuple(c) for c in corners}
        assert line.get_linestyle() == dash
        assert matplotlib.colors.same_color(line.get_color(), colour)


def test_one_line_needs_no_legend(frame: pd.DataFrame) -> None:
    explorer = make(frame[frame["method"] == "FLoRAL"].drop(columns="method"), colour=None)
    made = explore_figure(explorer, explorer.chosen)
    assert not made.legends
    assert len(made.axes[0].lines) == 1
    assert 'class="keys"' not in page.fragment(explorer)


@pytest.mark.parametrize(("num_points", "marker"), [(20, "o"), (21, "None")])
def test_a_line_of_many_points_has_no_markers(num_points: int, marker: str) -> None:
    frame = pd.DataFrame({"rank": 1, "step": range(num_points), "loss": 1.0})
    explorer = make(frame, sliders=["rank"], colour=None)
    assert explore_figure(explorer, explorer.chosen).axes[0].lines[0].get_marker() == marker


def test_between_whole_numbers_there_are_no_ticks() -> None:
    frame = pd.DataFrame({"rank": 1, "step": range(3), "loss": [0.0, 0.1, 0.2]})
    explorer = make(frame, sliders=["rank"], colour=None)
    (axis,) = explore_figure(explorer, explorer.chosen).axes
    assert all(tick.is_integer() for tick in axis.get_xticks())
    assert not all(tick.is_integer() for tick in axis.get_yticks())


def test_few_powers_of_ten_have_ticks_between_and_many_are_written_as_powers() -> None:
    frame = pd.DataFrame({"rank": 1, "step": [1, 2, 4, 8, 16], "loss": [1.0, 1e-2, 1e-4, 1e-6, 1e-8]})
    explorer = make(frame, sliders=["rank"], colour=None, log="xy", labels={"loss": "the loss of " * 4})
    (axis,) = explore_figure(explorer, explorer.chosen).axes
    axis.figure.draw_without_rendering()
    assert {"1", "2", "5", "10"} <= {label.get_text() for label in axis.get_xticklabels()}
    assert any("10^{-6}" in label.get_text() for label in axis.get_yticklabels())
    assert axis.get_ylabel().count("\n") == 1


def test_ten_lines_can_be_told_apart() -> None:
    frame = pd.DataFrame({"rank": 1, "step": 0, "method": range(10), "loss": 1.0})
    assert make(frame, sliders=["rank"]).lines == [*range(10)]


def test_limits_leave_room_for_every_row(frame: pd.DataFrame) -> None:
    explorer = make(frame, band=("low", "high"))
    low, high = frame["low"].min(), frame["high"].max()
    assert explorer.limits("y") == pytest.approx((low - 0.04 * (high - low), high + 0.04 * (high - low)))
    assert explorer.limits("x") == pytest.approx((-0.16, 4.16))
    assert decode(page.fragment(explorer))["y"]["limits"] == pytest.approx(explorer.limits("y"))
    assert make(frame.assign(loss=7.0)).limits("y") == (6.5, 7.5)
    low, high = make(frame.assign(loss=1e17)).limits("y")
    assert low < 1e17 < high


@pytest.mark.parametrize("log", ["", "y"])
@pytest.mark.parametrize("size", [0.8, 100.0])
def test_numbers_that_differ_by_rounding_have_limits_that_do_not(
    frame: pd.DataFrame, size: float, log: str
) -> None:
    """As means over seeds do; between the next two floats a page would look for ticks for ever."""
    loss = np.where(frame["step"] > 0, size, np.nextafter(size, 2 * size))
    low, high = make(frame.assign(loss=loss), log=log).limits("y")
    assert (high - low) / high > 1e-3


def test_logarithmic_axis(frame: pd.DataFrame) -> None:
    explorer = make(frame.assign(loss=10.0 ** (frame["step"] - 2)), log="y")
    assert explorer.limits("y") == pytest.approx((10**-2.16, 10**2.16))
    assert decode(page.fragment(explorer))["y"]["log"] is True
    assert decode(page.fragment(explorer))["x"]["log"] is False
    (axis,) = explore_figure(explorer, explorer.chosen).axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("linear", "log")
    np.testing.assert_allclose(np.log10(axis.get_yticks()) % 1, 0)  # a tick a power
    axis.figure.draw_without_rendering()
    assert {"0.01", "1", "100"} <= {label.get_text() for label in axis.get_yticklabels()}
    with pytest.raises(InputError, match="column 'low' has values of 0 or less"):
        make(frame.assign(low=0.0), band=("low", "high"), log="y")


def test_page_holds_the_frame_at_every_stop(frame: pd.DataFrame) -> None:
    frame = frame.sample(frac=1, random_state=0)  # an index in no order must not matter
    explorer = make(frame, band=("low", "high"))
    read = decode(page.fragment(explorer))
    columns = read["columns"]
    names = {"x": "step", "y": "loss", "low": "low", "high": "high"}
    table = pd.DataFrame({column: columns[part] for part, column in names.items()})
    for place, slider in enumerate(("rank", "task")):
        assert read["sliders"][place]["stops"] == [str(stop) for stop in explorer.stops[slider]]
        table[slider] = [explorer.stops[slider][code] for code in columns["sliders"][place]]
    table["method"] = [read["lines"][code]["name"] for code in columns["line"]]
    for stops in itertools.product(RANKS, TASKS):
        chosen = dict(zip(("rank", "task"), stops, strict=True))
        seen = table[(table["rank"] == chosen["rank"]) & (table["task"] == chosen["task"])]
        wanted = explorer.rows(chosen)
        assert len(seen) == 10
        pd.testing.assert_frame_equal(
            seen.reset_index(drop=True),
            wanted.reset_index(drop=True)[seen.columns],
            rtol=5e-5,
            check_dtype=False,
        )


def test_numbers_are_short_and_whole_ones_exact(frame: pd.DataFrame) -> None:
    values = [1234567, 1 / 3, np.nan, np.inf, 2e-7 / 3] * 12
    text = page.to_json(make(frame.assign(loss=values)))
    assert '"y":[1234567,0.33333,null,null,6.6667e-08,' in text
    # where the axis is short, as many more as its ends have in common
    assert '"y":[1.000013,1.000014' in page.to_json(make(frame.assign(loss=1.000013 + 1e-6 * np.arange(60))))
    below = make(frame.assign(loss=-1.000013 - 1e-6 * np.arange(60)))
    assert '"y":[-1.000013,-1.000014' in page.to_json(below)
    assert '"x":[1.000013,1.000014' in page.to_json(make(frame.assign(step=1.000013 + 1e-6 * frame["step"])))


def test_a_page_of_the_book_has_the_script_once(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATIC_VARIABLE, "1")
    bundle = make(frame)._repr_mimebundle_()
    tags = Reader(str(bundle["text/html"])).tags
    assert tags.count("script") == 1, "the book loads the script once for all explorers"
    assert "style" not in tags


def test_notebook_has_the_widget_and_html_that_outlives_it(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STATIC_VARIABLE, raising=False)
    bundle = make(frame)._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html", WIDGET}
    assert Reader(str(bundle["text/html"])).tags.count("script") == 2
    assert 'src="data:image/png' in str(bundle["text/html"])  # what a viewer that drops scripts shows


def test_live_sliders_draw_anew(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[plots.Picture] = []
    shown: list[HTML] = []

    def kept(made: plots.Picture, words: str) -> str:
        drawn.append(made)
        return as_html(made, words)

    monkeypatch.setattr(page, "as_html", kept)
    monkeypatch.setattr("floral_lite.explorer.explorer.display", shown.append)
    explorer = make(frame, start={"rank": 4}, labels={"rank": "rank r"})
    _, rank, task, output, _ = explorer.widget().children
    assert isinstance(rank, ipywidgets.SelectionSlider)
    assert isinstance(task, ipywidgets.Dropdown)
    assert isinstance(output, ipywidgets.Output)
    assert (rank.description, rank.value) == ("rank r", 4)
    assert rank.options == tuple((str(stop), stop) for stop in RANKS)  # words, and what they stand for
    rank.value = 16
    task.value = "label shift"
    assert all('alt="Loss: loss against step"' in picture.data for picture in shown)
    assert len(shown) == len(drawn)
    lines = [picture.axes[0].lines[0].get_ydata() for picture in drawn]
    stops = [(4, "rotate"), (16, "rotate"), (16, "label shift")]
    for found, stop in zip(lines, stops, strict=True):
        wanted = frame.set_index(["rank", "task", "method"]).sort_index().loc[(*stop, "FedAvg"), "loss"]
        np.testing.assert_array_equal(found, wanted)


def test_saved_page_stands_alone(frame: pd.DataFrame, tmp_path: Path) -> None:
    make(frame).save(tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    tags = Reader(html).tags
    assert tags[0] == "html"
    assert (tags.count("script"), tags.count("style"), tags.count("link")) == (2, 1, 0)
    assert "https://" not in html


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        make(frame).save(tmp_path / "page.html")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "old")]


def test_texts_cannot_break_the_page(frame: pd.DataFrame) -> None:
    nasty = """</script><!-- <script>'"&<b>"""
    harmless = Reader(page.document(make(frame))).tags
    renamed = frame.replace({"FLoRAL": nasty, "label shift": nasty})
    labels = dict.fromkeys(frame.columns, nasty)
    explorer = make(renamed, title=nasty, about=nasty, labels=labels)
    html = page.document(explorer)
    assert Reader(html).tags == harmless
    read = decode(html)
    assert read["title"] == read["x"]["label"] == read["lines"][1]["name"] == nasty
    assert read["sliders"][1]["stops"] == ["rotate", nasty]


def test_a_page_names_and_paints_all_as_the_figure_does(frame: pd.DataFrame) -> None:
    explorer = make(frame, band=("low", "high"), labels={column: f"the {column}" for column in frame.columns})
    html = page.fragment(explorer)
    read = decode(html)
    assert [read["x"]["label"], read["y"]["label"], read["colour"]] == ["the step", "the loss", "the method"]
    assert read["band"] == {"low": "the low", "high": "the high"}
    sliders = ["the rank", "the task"]
    assert [slider["label"] for slider in read["sliders"]] == sliders
    assert re.findall("<label><span>([^<]*)<", html) == sliders
    assert re.findall('class="axis[^"]*">([^<]*)<', html) == ["the loss", "the step"]
    looks = [
        (page.DASHES[DASHES.index(line.get_linestyle())], matplotlib.colors.to_hex(line.get_color()))
        for line in explore_figure(explorer, explorer.chosen).axes[0].lines
    ]
    assert [(line["dash"], line["colour"]) for line in read["lines"]] == looks
    assert re.findall('stroke-dasharray="([^"]*)" style="--hue: (#[0-9a-f]*)"', html) == looks
    assert len(set(page.DASHES)) == len(page.DASHES) == len(DASHES)


def test_about_is_a_sentence_or_a_list(frame: pd.DataFrame) -> None:
    assert page.about(make(frame, about="Seed 0.")) == '<p class="about">Seed 0.</p>'
    listed = page.about(make(frame, about={"seeds": 4, "command": "a < b"}))
    assert listed == '<dl class="about"><dt>seeds</dt><dd>4</dd><dt>command</dt><dd>a &lt; b</dd></dl>'


def test_start_is_where_the_page_stands(frame: pd.DataFrame) -> None:
    html = page.fragment(make(frame, start={"rank": 16, "task": "label shift"}))
    assert 'min="0" max="2" value="2" aria-valuetext="16"' in html
    assert '<option value="1" selected>label shift</option>' in html


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": "acc"}, r"no column 'acc'; its columns are \['rank', 'task'"),
        ({"x": "round"}, r"no column 'round'; it is in the index: give frame.reset_index\(\)"),
        ({"y": "task"}, r"column 'task' is named twice"),
        (
            {"x": "method", "colour": None},
            r"column 'method' holds .*, not numbers; convert it with pandas.to_num",
        ),
        ({"sliders": "rank"}, r"sliders is 'rank'; it must be a list of columns, such as \['rank'\]"),
        ({"sliders": []}, r"sliders is \[\]"),
        ({"band": "low"}, "band is 'low'; it must be two columns"),
        ({"log": "z"}, "log is 'z'; it must be '', 'x', 'y' or 'xy'"),
        ({"log": "x"}, "column 'step' has values of 0 or less, .* leave 'x' out of log"),
        ({"start": {"rank": 3}}, r"start is 3 for 'rank'; it must be one of \[1, 4, 16\]"),
        ({"start": {"step": 3}}, r"start names 'step'; the sliders are \['rank', 'task'\]"),
        ({"colour": "loss", "y": "low"}, "column 'loss' has 60 values; at most 10 lines can be told apart"),
        (
            {"sliders": ["rank"]},
            "rows with the same step, rank, method differ in column 'task', which has 2 values",
        ),
        (
            {"sliders": ["method"], "colour": None},
            "rows with the same step, method differ in column 'task', which has 2 values",
        ),
    ],
)
def test_columns_that_cannot_be_drawn(frame: pd.DataFrame, changes: dict[str, Any], message: str) -> None:
    frame.index.name = "round"
    frame["loss"] = np.arange(60)
    with pytest.raises(InputError, match=message):
        make(frame, **changes)


def test_rows_that_cannot_be_drawn(frame: pd.DataFrame) -> None:
    lacking = frame.query(
        "not (rank == 16 and task == 'label shift') and not (rank == 1 and task == 'rotate')"
    )
    with pytest.raises(InputError, match=r"^2 combinations .* no rows, the first is rank = 1, task = rotate"):
        make(lacking)
    # the likely one is told, with the fewest values
    with pytest.raises(InputError, match="differ in column 'task', which has 2 values"):
        make(frame[frame.columns[::-1]], sliders=["rank"])
    with pytest.raises(InputError, match="the frame has no rows"):
        make(frame.iloc[:0])
    with pytest.raises(InputError, match="column 'loss' has no finite number"):
        make(frame.assign(loss=np.nan))
    with pytest.raises(InputError, match="column 'step' has rows that are not finite"):
        make(frame.assign(step=frame["step"].replace(0, np.nan)))
    with pytest.raises(InputError, match="column 'task' has empty rows"):
        make(frame.assign(task=frame["task"].replace("rotate", None)))


@pytest.mark.parametrize("part", ["rank", "method"])  # a slider, the lines
def test_values_that_read_alike_are_refused(frame: pd.DataFrame, part: str) -> None:
    apart = frame[part].map({value: 0.1 + place * 1e-9 for place, value in enumerate(frame[part].unique())})
    with pytest.raises(InputError, match=rf"column '{part}' has the values 0.1 and 0.100\d+, .* as 0.1 both"):
        make(frame.assign(**{part: apart}))


def test_a_path_may_come_back_to_where_it_was(frame: pd.DataFrame) -> None:
    make(frame[OWN].assign(step=[0, 1, 2, 1, 0] * 12))


def test_too_many_numbers_for_a_page() -> None:
    steps = np.arange(30_000)
    frame = pd.DataFrame({"rank": 1, "step": steps, "loss": np.sqrt(steps)})
    message = r"30000 rows take \d+ kB in a page, of at most 300 kB; keep one step in 2"
    with pytest.raises(InputError, match=message):
        make(frame, sliders=["rank"], colour=None)


def test_an_empty_value_counts_and_names_are_unique() -> None:
    rows = pd.DataFrame([(1, step, loss) for step in range(3) for loss in (0.1, 0.9)])
    rows.columns = pd.Index(["rank", "step", "loss"])

    def show(given: pd.DataFrame) -> Explorer:
        return floral_lite.explore(given, x="step", y="loss", sliders=["rank"], title="", about="")

    with pytest.raises(InputError, match="column 'seed'"):
        show(rows.assign(seed=[None, 1.0] * 3))
    with pytest.raises(InputError, match="several columns called 'loss'"):
        show(pd.concat([rows, rows[["loss"]]], axis=1))
    assert len(show(rows).rows({"rank": 1})) == 6


def test_sliders_of_measurements_are_refused_without_a_list_of_their_combinations() -> None:
    frame = pd.DataFrame({name: np.arange(1000.0) for name in "xyabc"})
    with pytest.raises(InputError, match=r"^999999000 combinations of the sliders have no rows"):
        Explorer(frame, x="x", y="y", sliders=["a", "b", "c"], title="t", about="a")


def test_a_column_that_goes_with_the_lines_is_not_the_forgotten_one() -> None:
    lines = [
        {"x": x, "y": float(x), "z": 1, "method": name, "label": f"the {name}", "seed": seed}
        for x, name, seed in itertools.product((1, 2), ("one", "other"), (0, 1, 2))
    ]
    with pytest.raises(InputError, match="differ in column 'seed', which has 3 values"):
        Explorer(pd.DataFrame(lines), x="x", y="y", colour="method", sliders=["z"], title="t", about="a")


def test_a_path_may_have_a_column_that_goes_with_its_places() -> None:
    path = pd.DataFrame({"z": 1, "x": [0, 1, 0, 1], "percent": [0, 100, 0, 100], "y": [1.0, 2.0, 1.0, 2.0]})
    Explorer(path, x="x", y="y", sliders=["z"], title="t", about="a")


def test_a_forgotten_column_is_found_beside_columns_of_lists() -> None:
    lines = [
        {"x": x, "y": float(x), "z": 1, "seed": seed, "losses": [1.0, 2.0]}
        for x, seed in itertools.product((1, 2), (0, 1))
    ]
    with pytest.raises(InputError, match="differ in column 'seed', which has 2 values"):
        Explorer(pd.DataFrame(lines), x="x", y="y", sliders=["z"], title="t", about="a")
