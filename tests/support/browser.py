# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by the installed chromedriver; nothing is downloaded."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHROMEDRIVER = "/usr/bin/chromedriver"
CHROMIUM = "/usr/bin/chromium"
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """What is not installed, or ""."""
    return ", ".join(path for path in (CHROMIUM, CHROMEDRIVER) if shutil.which(path) is None)


@contextmanager
def browser(user_data: Path, *, width: int = 1400, height: int = 900) -> Iterator[Chrome]:
    """A browser with a fresh profile folder; logs "performance" and "browser" are kept."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={user_data}", f"--window-size={width},{height}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        driver.set_window_size(width, height)
        # What the browser's own first page loads is not of interest.
        driver.get("about:blank")
        _read_log(driver, "performance")
        _read_log(driver, "browser")
        yield driver
    finally:
        driver.quit()


def _read_log(driver: Chrome, kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = driver.execute("getLog", {"type": kind})["value"]
    return entries


def network_events(driver: Chrome) -> list[dict[str, Any]]:
    """Events of the domain Network since the last call, each with "method" and "params"."""
    messages = [json.loads(entry["message"])["message"] for entry in _read_log(driver, "performance")]
    return [message for message in messages if message["method"].startswith("Network.")]


def console_messages(driver: Chrome) -> list[str]:
    """What the page's console says since the last call; empty if nothing is wrong."""
    return [entry["message"] for entry in _read_log(driver, "browser")]


def use_colour_scheme(driver: Chrome, scheme: str) -> None:
    """Have the page see "light" or "dark" as what the user prefers."""
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
