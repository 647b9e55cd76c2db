# SPDX-License-Identifier: Apache-2.0
"""The flame graph page in a browser, as tests read and use it; profiles to draw; contrast of colours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By as Find
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from pyprof.export import flamegraph
from pyprof.profile.model import Accounting, By, Executable, Frame, FrameKind, Process, Profile, Thread
from tests.support import browser

NATIVE, KERNEL, UNKNOWN = FrameKind.NATIVE, FrameKind.KERNEL, FrameKind.UNKNOWN
# Whatever else there is belongs to an interpreter.
INTERPRETER = cast(FrameKind, 99)


def profile_of(
    frames: list[tuple[FrameKind, int, str]],
    samples: list[tuple[int, list[int], int]],
    processes: list[str],
    *,
    by: By = By.PROCESS,
) -> Profile:
    """frames: (kind, executable, name); samples: (process, frames leaf first, count)."""
    profile = Profile(started_at=1_700_000_000_000_000_000, duration=10_000_000_000, hz=20, by=by)
    profile.processes = [Process(40 + index, name, index) for index, name in enumerate(processes)]
    profile.threads = [Thread(0, "")]
    profile.executables = [Executable("/usr/bin/app"), Executable("/usr/lib/libc.so.6")]
    profile.frames = [
        Frame(kind, executable, 0x1000 + index, name, name)
        for index, (kind, executable, name) in enumerate(frames)
    ]
    for process, stack, count in samples:
        profile.sample_process.append(process)
        profile.sample_thread.append(0)
        profile.sample_stack.append(len(profile.stack_starts) - 1)
        profile.sample_count.append(count)
        profile.sample_end.append(0)
        profile.stack_frames.extend(stack)
        profile.stack_starts.append(len(profile.stack_frames))
    total = sum(profile.sample_count)
    profile.accounting = Accounting(total, total)
    return profile


def small_profile() -> Profile:
    """200 samples, with the callees of a frame in brackets after its count.

    app 60 (main 60 (idle 10, work 50 (memcpy 20))), web 40 (serve 40 (memcpy 25, vfs_read 15)), swapper 100.
    """
    profile = profile_of(
        [
            (NATIVE, 0, "main"),
            (NATIVE, 0, "work"),
            (NATIVE, 1, "memcpy"),
            (NATIVE, 0, "idle"),
            (NATIVE, 0, "serve"),
            (KERNEL, -1, "vfs_read"),
            (KERNEL, -1, "do_idle"),
        ],
        [
            (0, [1, 0], 30),
            (0, [2, 1, 0], 20),
            (0, [3, 0], 10),
            (1, [2, 4], 25),
            (1, [5, 4], 15),
            (2, [6], 100),
        ],
        ["app", "web", "swapper"],
    )
    profile.accounting = Accounting(
        1205, 200, {"ring_full": 1000, "no_memory": 5}, {"rule_unsupported": 3, "stack_too_deep": 1}
    )
    return profile


class Page:
    """The page in the browser, and what can be read from it."""

    def __init__(self, driver: Chrome, folder: Path) -> None:
        self.driver = driver
        self.path = folder / "flame graph.html"

    def open(self, profile: Profile) -> None:
        with self.path.open("wb") as out:
            flamegraph.write(profile, out)
        self.driver.get(self.path.as_uri())

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(Find.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return str(self.element(selector).get_property("textContent"))

    def frames(self) -> list[dict[str, Any]]:
        """The drawn frames: label, place in pixels from the drawing's left top, colours."""
        found: list[dict[str, Any]] = self.driver.execute_script(
            """
            const origin = document.querySelector("#chart svg").getBoundingClientRect();
            return Array.from(document.querySelectorAll("#chart g.frame"), (g) => {
              const rect = g.querySelector("rect"), label = g.querySelector("div");
              const transform = g.transform.baseVal.consolidate().matrix;
              return {label: label.textContent, labelled: getComputedStyle(label).display !== "none",
                      x: transform.e, y: transform.f, width: Number(rect.getAttribute("width")),
                      fill: getComputedStyle(rect).fill, ink: getComputedStyle(label).color,
                      faded: g.classList.contains("fade")};
            });
            """
        )
        return found

    def labels(self) -> set[str]:
        return {frame["label"] for frame in self.frames()}

    def frame(self, label: str, below: str | None = None) -> dict[str, Any]:
        """The frame with a label; below: of several, the one under that other frame."""
        found = [frame for frame in self.frames() if frame["label"] == label]
        if below is not None:
            upper = self.frame(below)
            found = [f for f in found if upper["x"] <= f["x"] < upper["x"] + upper["width"]]
        (frame,) = found
        return frame

    def group(self, label: str) -> WebElement:
        index = [frame["label"] for frame in self.frames()].index(label)
        return self.driver.find_elements(Find.CSS_SELECTOR, "#chart g.frame rect")[index]

    def hover(self, label: str) -> None:
        ActionChains(self.driver).move_to_element(self.group(label)).perform()

    def click(self, label: str) -> None:
        ActionChains(self.driver).move_to_element(self.group(label)).click().perform()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def search(self, text: str) -> str:
        """Type a search text and return the line that says how much it matches."""
        before = self.text("#matched")
        box = self.element("#search")
        box.clear()
        box.send_keys(text)
        WebDriverWait(self.driver, 20, 0.05).until(lambda _: self.text("#matched") not in ("", before))
        return self.text("#matched")

    def path_names(self) -> list[str]:
        found = self.driver.find_elements(Find.CSS_SELECTOR, "#path button")
        return [str(crumb.get_property("textContent")) for crumb in found]

    def background(self) -> float:
        """Luminance of the page."""
        return luminance(self.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def table(self) -> list[tuple[str, str, str]]:
        """Rows as (self, total, function)."""
        rows: list[list[str]] = self.driver.execute_script(
            "return Array.from(document.querySelectorAll('#rows tr'), (row) =>"
            "  [row.cells[0], row.cells[1], row.querySelector('.function')].map((cell) => cell.textContent));"
        )
        return [(own, total, name) for own, total, name in rows]


@contextmanager
def watched_page(driver: Chrome, folder: Path) -> Iterator[Page]:
    """The page in a window of known size, in light colours; it must leave nothing in the console."""
    browser.use_colour_scheme(driver, "light")
    driver.set_window_size(1400, 900)
    browser.network_events(driver)
    browser.console_messages(driver)
    yield Page(driver, folder)
    assert browser.console_messages(driver) == []


def luminance(colour: str) -> float:
    """Relative luminance of an "rgb(r, g, b)": https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    values = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
