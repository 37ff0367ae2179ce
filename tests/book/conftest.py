"""One browser for all tests that open pages."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


def without(what: str) -> NoReturn:
    """Skip on somebody's own machine; in CI, where it must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["BrowserContext"]:
    from playwright.sync_api import sync_playwright  # here: the chapters run without it too, on Colab say

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        without(f"no browser on the PATH: one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        profile = tmp_path_factory.mktemp("profile")
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=executable, args=FLAGS, has_touch=True
        )
        yield context
        context.close()
