# SPDX-License-Identifier: Apache-2.0
"""The flame graph page in a real browser: hostile names, the network, and very large or deep profiles."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By as Find

from pyprof.profile.model import FrameKind
from tests.support import browser
from tests.support.flamegraph_page import NATIVE, Page, profile_of, small_profile, watched_page

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=f"not installed: {browser.missing()}")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser.browser(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


@pytest.fixture
def page(driver: Chrome, tmp_path: Path) -> Iterator[Page]:
    with watched_page(driver, tmp_path) as watched:
        yield watched


HOSTILE = [
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<!-- <script>",
    '" onmouseover="window.pwned = 1" \'',
    "back\\slash \\u003c &lt; &amp;",
    "a\u2028b\u2029c",
    "\U0001d11e\U0001f525",
    "javascript:window.pwned=1",
    "__proto__",
    "constructor",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_name_is_only_text(page: Page, name: str) -> None:
    page.open(small_profile())
    plain = page.driver.execute_script("return document.querySelectorAll('head *, body > *').length")
    profile = profile_of([(NATIVE, 0, name)], [(0, [0], 1)], [f"p {name}"])
    profile.executables[0].path = f"/{name}"
    profile.accounting.lost = {name: 1}
    page.open(profile)
    assert page.labels() == {"all", f"p {name}", name}
    page.hover(name)
    assert page.text("#tooltip .name") == name
    assert page.text("#tooltip .file") == f"/{name}"
    assert page.text("#details .name") == name
    page.click(name)
    assert page.path_names() == ["all", f"p {name}", name]
    page.element("#rows tr").click()
    assert page.text("#matched") == "100.00% matched"
    assert page.element("#rows .name").get_attribute("title") == f"{name}\n/{name}"
    assert page.driver.execute_script("return window.pwned") is None
    assert page.driver.find_elements(Find.CSS_SELECTOR, "img") == []
    assert page.driver.execute_script("return document.querySelectorAll('head *, body > *').length") == plain


def test_no_request_but_for_the_page_itself(page: Page) -> None:
    page.open(small_profile())
    page.search("memcpy")
    page.click("main")
    page.element("#help").click()
    page.element("#about button").click()
    requests = [
        event["params"]["request"]["url"]
        for event in browser.network_events(page.driver)
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [page.path.as_uri()]


def test_policy_stops_connections_and_foreign_scripts(page: Page) -> None:
    page.open(small_profile())
    blocked = page.driver.execute_async_script(
        """
        const done = arguments[0], seen = [];
        document.addEventListener("securitypolicyviolation", (event) => {
          seen.push(event.effectiveDirective);
          if (seen.length === 2) done([...seen, window.ran === undefined]);
        });
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        fetch("http://127.0.0.1:9/").catch(() => {});
        """
    )
    assert sorted(blocked[:2]) == ["connect-src", "script-src-elem"]
    assert blocked[2] is True
    assert len(browser.console_messages(page.driver)) >= 2


def test_frames_that_are_too_narrow_to_draw_are_counted(page: Page) -> None:
    frames: list[tuple[FrameKind, int, str]] = [(NATIVE, 0, f"f{index:04}") for index in range(3000)]
    samples = [(0, [index], 1) for index in range(2999)]
    page.open(profile_of(frames, [*samples, (0, [2999], 100_000)], ["app"]))
    assert page.labels() == {"all", "app", "f2999"}
    assert page.text("#drawn") == "3 of 3,002 frames drawn, the others are narrower than 1 px: zoom in"
    assert page.search("f0007") == "<0.01% matched"


def test_hundred_thousand_nodes_are_drawn_and_searched(page: Page) -> None:
    frames: list[tuple[FrameKind, int, str]] = [(NATIVE, 0, f"f{index}") for index in range(5000)]
    # Each stack is 25 frames that no other has in this order.
    stacks = [[(index * 7919 + level * (index + 1)) % 5000 for level in range(25)] for index in range(4400)]
    page.open(profile_of(frames, [(i % 4, stack, 1) for i, stack in enumerate(stacks)], ["a", "b", "c", "d"]))
    all_nodes = int(page.text("#drawn").split(" of ")[1].split(" ")[0].replace(",", ""))
    assert all_nodes > 100_000
    expected = sum(any("77" in f"f{frame}" for frame in stack) for stack in stacks)
    assert page.search("77") == f"{100 * expected / len(stacks):.2f}% matched"
    assert len(page.frames()) < 30_000


def test_stack_of_fifteen_hundred_frames_can_be_zoomed(page: Page) -> None:
    frames: list[tuple[FrameKind, int, str]] = [(NATIVE, 0, "recurse"), (NATIVE, 0, "leaf")]
    page.open(profile_of(frames, [(0, [1, *[0] * 1500], 1), (0, [0] * 1400, 1)], ["app"]))
    assert len(page.frames()) == 1503
    page.click("leaf")
    assert page.path_names()[-1] == "leaf"
    assert page.text("#path .more") == "1497 more"
    page.press(Keys.ESCAPE)
    assert page.path_names() == ["all"]
