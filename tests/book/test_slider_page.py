"""A slider over pictures made beforehand, in a real browser: its name, what it says, and where it starts."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import BrowserContext

from floral_lite.plots import image_grid
from floral_lite.plots.style import as_html
from floral_lite.widgets import static_slider

VALUES = [1, 5, 20]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A page with a slider alone."""
    picture = image_grid(np.zeros((1, 1, 2, 2)), ["row"])
    html = static_slider([as_html(picture, f"after <{value}>") for value in VALUES], VALUES, "steps <H>", 5)
    written = tmp_path / "page.html"
    written.write_text(f"<!doctype html><title>sliders</title>{html}", encoding="utf-8")
    return written


def test_a_slider_says_its_name_and_value_and_is_whole_when_a_reader_comes_back(
    browser: BrowserContext, path: Path
) -> None:
    page = browser.new_page()
    page.goto(path.as_uri())
    slider = page.get_by_role("slider", name="steps <H>")
    for key, value in (("Home", "1"), ("End", "20")):
        slider.press(key)
        assert slider.get_attribute("aria-valuetext") == value
        assert page.locator("label").inner_text().strip() == f"steps <H> = {value}"
        assert page.locator("img:visible").get_attribute("alt") == f"after <{value}>"
    page.goto("about:blank")
    page.go_back()
    assert slider.input_value() == "1"  # the second value
    assert slider.get_attribute("aria-valuetext") == "5"
    assert page.locator("img:visible").get_attribute("alt") == "after <5>"
    page.close()
