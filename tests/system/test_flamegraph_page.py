# SPDX-License-Identifier: Apache-2.0
"""The flame graph page in a real browser: what it draws, says and does, and that it stays by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By as Find
from selenium.webdriver.support.ui import WebDriverWait

from pyprof.profile.model import By, Profile
from tests.support import browser
from tests.support.flamegraph_page import (
    INTERPRETER,
    KERNEL,
    NATIVE,
    UNKNOWN,
    Page,
    contrast,
    luminance,
    profile_of,
    small_profile,
    watched_page,
)

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=f"not installed: {browser.missing()}")

PUSH_BACK = "std::vector<int, std::allocator<int> >::push_back(int const&)"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser.browser(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


@pytest.fixture
def page(driver: Chrome, tmp_path: Path) -> Iterator[Page]:
    with watched_page(driver, tmp_path) as watched:
        yield watched


@pytest.fixture
def small(page: Page) -> Page:
    page.open(small_profile())
    return page


def test_frames_are_drawn_for_each_node(small: Page) -> None:
    assert sorted(frame["label"] for frame in small.frames()) == sorted(
        [
            "all",
            "app",
            "main",
            "idle",
            "work",
            "memcpy",
            "web",
            "serve",
            "memcpy",
            "vfs_read",
            "swapper",
            "do_idle",
        ]
    )


def test_widths_are_shares_of_all_samples(small: Page) -> None:
    whole = small.frame("all")["width"]
    shares = {"app": 60, "swapper": 100, "web": 40, "main": 60, "idle": 10, "work": 50, "vfs_read": 15}
    assert {name: round(small.frame(name)["width"] / whole * 200, 3) for name in shares} == shares
    assert small.frame("memcpy", below="work")["width"] == pytest.approx(whole * 20 / 200)
    assert small.frame("memcpy", below="serve")["width"] == pytest.approx(whole * 25 / 200)


def test_rows_go_from_process_to_leaf_and_left_to_right_by_name(small: Page) -> None:
    rows = [small.frame(name)["y"] for name in ("all", "app", "main", "work")]
    assert rows == [0, 20, 40, 60]
    assert small.frame("memcpy", below="work")["y"] == 80
    assert small.frame("app")["x"] < small.frame("swapper")["x"] < small.frame("web")["x"]


def test_flip_puts_the_root_at_the_bottom(small: Page) -> None:
    small.element("#flip").click()
    assert small.frame("all")["y"] > small.frame("app")["y"] > small.frame("main")["y"]


def test_flipped_root_stays_in_view_when_zooming(page: Page) -> None:
    page.open(profile_of([(NATIVE, 0, "f"), (NATIVE, 0, "g")], [(0, [0] * 90, 1), (0, [1] * 60, 1)], ["app"]))

    def in_view() -> bool:
        return bool(
            page.driver.execute_script(
                "const pane = document.getElementById('pane').getBoundingClientRect();"
                "const root = arguments[0].getBoundingClientRect();"
                "return root.top >= pane.top && root.bottom <= pane.bottom;",
                page.group("all"),
            )
        )

    page.element("#flip").click()
    assert in_view()
    page.click("g")
    assert page.path_names()[:3] == ["all", "app", "g"]
    assert in_view()


def test_header_states_the_recording_and_each_sample(small: Page) -> None:
    facts = {
        name: small.text(f"#fact-{name} dd") for name in ("started", "duration", "rate", "taken", "reported")
    }
    assert facts == {
        "started": "2023-11-14 22:13:20 UTC",
        "duration": "10 s",
        "rate": "20 Hz per CPU, cpu-clock",
        "taken": "1,205",
        "reported": "200",
    }
    assert small.text("#fact-lost dd") == "1,005 (83.40%): ring full 1,000, no memory 5"
    assert small.text("#fact-incomplete dd") == "4 (2.00%): rule unsupported 3, stack too deep 1"


def test_legend_names_the_kinds_that_occur(small: Page) -> None:
    legend = small.driver.find_elements(Find.CSS_SELECTOR, "#legend li")
    assert [item.text for item in legend] == ["process", "kernel", "native"]


def test_kinds_have_distinct_colours(page: Page) -> None:
    page.open(
        profile_of(
            [(NATIVE, 0, "a"), (KERNEL, -1, "b"), (UNKNOWN, -1, "c"), (INTERPRETER, -1, "d")],
            [(0, [index], 1) for index in range(4)],
            ["app"],
        )
    )
    assert len({page.frame(name)["fill"] for name in ("app", "a", "b", "c", "d")}) == 5


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("memcpy", "22.50%"),  # 20 below work, 25 below serve
        ("MEMC", "22.50%"),
        ("/work|^memcpy$/", "37.50%"),  # work 50, with the memcpy in it counted once, and 25
        ("idle", "55.00%"),  # idle 10 and do_idle 100
        ("web", "20.00%"),  # a process
        ("app", "80.00%"),  # app and swapper
        ("nothing", "0.00%"),
        ("all", "0.00%"),  # the root is no function
    ],
)
def test_search_states_the_matched_share(small: Page, text: str, share: str) -> None:
    assert small.search(text) == f"{share} matched"


def test_search_marks_what_matches_and_mutes_the_rest(small: Page) -> None:
    before = {frame["label"]: frame["fill"] for frame in small.frames()}
    small.search("memcpy")
    marked = [frame for frame in small.frames() if frame["label"] == "memcpy"]
    assert len(marked) == 2
    assert marked[0]["fill"] == marked[1]["fill"] != before["memcpy"]
    assert small.frame("main")["fill"] not in (before["main"], marked[0]["fill"])


def test_search_for_a_broken_expression_says_so(small: Page) -> None:
    assert small.search("/(/") == "not a regular expression"
    assert "main" in small.labels()


def test_search_in_a_zoomed_frame_is_a_share_of_that_frame(small: Page) -> None:
    small.click("main")
    assert small.search("memcpy") == "33.33% matched"
    assert small.element("#matched").get_attribute("title") == "20 of 60 samples in the frame zoomed to"


def test_click_zooms_into_a_frame_and_reset_returns(small: Page) -> None:
    whole = small.frame("all")["width"]
    small.click("main")
    assert small.frame("main")["width"] == whole
    assert small.frame("work")["width"] == pytest.approx(whole * 50 / 60)
    assert small.labels() == {"all", "app", "main", "idle", "work", "memcpy"}
    assert small.path_names() == ["all", "app", "main"]
    small.element("#reset").click()
    assert small.frame("main")["width"] == pytest.approx(whole * 60 / 200)
    assert small.path_names() == ["all"]
    assert not small.element("#reset").is_enabled()


def test_click_on_the_path_zooms_out_to_that_frame(small: Page) -> None:
    small.click("work")
    small.element("#path button:nth-of-type(2)").click()
    assert small.path_names() == ["all", "app"]


def test_click_on_a_faded_ancestor_zooms_out(small: Page) -> None:
    small.click("work")
    assert small.frame("app")["faded"]
    small.click("app")
    assert small.path_names() == ["all", "app"]


def test_hover_shows_the_details_of_a_frame(small: Page) -> None:
    small.hover("work")
    tooltip = small.element("#tooltip")
    assert tooltip.is_displayed()
    assert tooltip.text.split("\n") == [
        "work", "/usr/bin/app", "native",
        "Samples", "50", "of all", "25.00%", "of parent", "83.33%", "Self", "30 (15.00%)",
    ]  # fmt: skip
    assert small.text("#details") == "work/usr/bin/app50 samples, 25.00%"


def test_hover_over_a_process_shows_its_pid(small: Page) -> None:
    small.hover("swapper")
    assert small.text("#tooltip .file") == "pid 42"


def test_tooltip_stays_within_the_window(small: Page) -> None:
    small.driver.set_window_size(700, 600)
    small.hover("web")
    inside = small.driver.execute_script(
        "const box = document.getElementById('tooltip').getBoundingClientRect();"
        "return box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;"
    )
    assert inside


def test_top_functions_are_ordered_by_self_and_by_total(small: Page) -> None:
    assert small.table() == [
        ("50.00%", "50.00%", "do_idle"),
        ("22.50%", "22.50%", "memcpy"),
        ("15.00%", "25.00%", "work"),
        ("7.50%", "7.50%", "vfs_read"),
        ("5.00%", "5.00%", "idle"),
        ("–", "30.00%", "main"),
        ("–", "20.00%", "serve"),
    ]
    small.element("button[data-sort=total]").click()
    assert [name for _, _, name in small.table()][:3] == ["do_idle", "main", "work"]


def test_top_functions_count_recursion_once(page: Page) -> None:
    page.open(profile_of([(NATIVE, 0, "f"), (NATIVE, 0, "g")], [(0, [0, 0, 1, 0], 3), (0, [1], 1)], ["app"]))
    assert page.table() == [("75.00%", "75.00%", "f"), ("25.00%", "100.00%", "g")]


def test_top_functions_are_those_of_the_zoomed_frame(small: Page) -> None:
    small.click("web")
    assert small.table() == [
        ("62.50%", "62.50%", "memcpy"),
        ("37.50%", "37.50%", "vfs_read"),
        ("–", "100.00%", "serve"),
    ]


def test_click_on_a_top_function_marks_exactly_it(small: Page) -> None:
    small.driver.find_elements(Find.CSS_SELECTOR, "#rows tr")[4].click()  # idle, not do_idle
    assert small.element("#search").get_property("value") == "idle"
    assert small.text("#matched") == "5.00% matched"


def test_long_name_is_shortened_in_the_table_and_whole_in_the_details(page: Page) -> None:
    page.open(profile_of([(NATIVE, 0, PUSH_BACK)], [(0, [0], 1)], ["app"]))
    assert page.table()[0][2] == "std::vector<…>::push_back(…)"
    page.hover(PUSH_BACK)
    assert page.text("#tooltip .name") == PUSH_BACK


@pytest.mark.parametrize("modifier", ["", Keys.CONTROL])
def test_key_puts_the_cursor_into_the_search(small: Page, modifier: str) -> None:
    if modifier:
        ActionChains(small.driver).key_down(modifier).send_keys("f").key_up(modifier).perform()
    else:
        small.press("/")
    small.press("work")
    assert small.element("#search").get_property("value") == "work"


def test_escape_clears_the_search_and_resets_the_zoom(small: Page) -> None:
    small.click("main")
    small.search("memcpy")
    small.press(Keys.ESCAPE)
    assert small.element("#search").get_property("value") == ""
    assert small.text("#matched") == ""
    assert small.path_names() == ["all"]
    assert len(small.frames()) == 12


def test_backspace_zooms_out_by_one_frame(small: Page) -> None:
    small.click("work")
    small.press(Keys.BACKSPACE)
    assert small.path_names() == ["all", "app", "main"]


def test_drawing_follows_the_window_width(small: Page) -> None:
    wide = small.frame("all")["width"]
    small.driver.set_window_size(800, 900)
    WebDriverWait(small.driver, 20, 0.05).until(lambda _: small.frame("all")["width"] < wide)
    pane = small.driver.execute_script("return document.getElementById('chart').clientWidth")
    assert small.frame("all")["width"] == pane


@pytest.mark.parametrize("width", [1400, 1000, 500])
def test_nothing_overflows_the_window(small: Page, width: int) -> None:
    small.driver.set_window_size(width, 800)
    overflow = small.driver.execute_script(
        "const root = document.documentElement;"
        "return [root.scrollWidth - root.clientWidth, root.scrollHeight - root.clientHeight];"
    )
    assert overflow == [0, 0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("search", ["", "/./"])
def test_labels_have_contrast_in_every_colour(page: Page, scheme: str, search: str) -> None:
    kinds = [(NATIVE, 0), (KERNEL, -1), (UNKNOWN, -1), (INTERPRETER, -1)]
    frames = [(kind, executable, f"f{index}") for kind, executable in kinds for index in range(12)]
    browser.use_colour_scheme(page.driver, scheme)
    page.open(profile_of(frames, [(0, [i], 1) for i in range(48)], ["app"], by=By.THREAD))
    if search:
        page.search(search)
    colours = {(frame["fill"], frame["ink"]) for frame in page.frames()}
    assert len(colours) > 3
    assert min(contrast(fill, ink) for fill, ink in colours) >= 4.5


def test_dark_scheme_is_followed_while_the_page_is_open(small: Page) -> None:
    light = small.frame("main")["fill"]
    assert small.background() > 0.9
    browser.use_colour_scheme(small.driver, "dark")
    WebDriverWait(small.driver, 20, 0.05).until(lambda _: small.background() < 0.05)
    assert luminance(small.frame("main")["fill"]) < luminance(light)


def test_button_changes_the_scheme_that_was_preferred(page: Page) -> None:
    browser.use_colour_scheme(page.driver, "dark")
    page.open(small_profile())
    dark = page.frame("main")["fill"]
    assert page.background() < 0.05
    page.element("#theme").click()
    assert page.background() > 0.9
    assert luminance(page.frame("main")["fill"]) > luminance(dark)
    page.element("#theme").click()
    assert page.frame("main")["fill"] == dark


def test_empty_profile_says_that_there_is_nothing(page: Page) -> None:
    page.open(Profile(started_at=0, duration=0, hz=20))
    assert page.element("#empty").is_displayed()
    assert page.text("#fact-taken dd") == "0"
