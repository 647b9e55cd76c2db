// SPDX-License-Identifier: Apache-2.0
// Puts the page together: state (zoom, search, theme), and the keys and buttons that change it.

import { Chart, MIN_WIDTH } from "./chart.js";
import { KIND_LABELS, Palette } from "./colours.js";
import { Details } from "./details.js";
import { showFacts } from "./header.js";
import { Profile } from "./profile.js";
import { matchNames } from "./search.js";
import { Table } from "./table.js";
import { count, element, percent, samples } from "./text.js";
// Last: they override what d3-flame-graph brings.
import "./base.css";
import "./page.css";
import "./panels.css";

const SEARCH_DELAY = 120; // ms after the last key
const TABLE_FROM_WIDTH = 1180; // px; on narrower windows the table opens on request
const MAX_PATH = 7;

const byId = (id) => document.getElementById(id);
const profile = new Profile(JSON.parse(byId("profile").textContent));
const palette = new Palette(profile.functions);
const search = byId("search");
const pane = byId("pane");

let chosen = null; // the function chosen in the table, which the search then means exactly
let matches = null;
let belowPane = 0; // px of the drawing that are scrolled out of view at the bottom

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  palette.use(theme);
  const used = new Set(profile.functions.map(({ kind }) => kind));
  byId("legend").replaceChildren(
    ...Object.keys(KIND_LABELS)
      .filter((kind) => kind !== "all" && used.has(kind))
      .map((kind) => element("li", "", element("span", `swatch ${kind}`), KIND_LABELS[kind])),
  );
  for (const kind of Object.keys(KIND_LABELS)) {
    document.documentElement.style.setProperty(`--kind-${kind}`, palette.legend(kind));
  }
}

const darkWanted = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(darkWanted.matches ? "dark" : "light");
showFacts(byId("facts"), profile.meta);
document.title = `pyprof ${profile.meta.host} ${byId("fact-started").lastChild.textContent}`;
byId("empty").hidden = profile.total[0] > 0;

const details = new Details(profile);
const table = new Table(profile, { onSelect: chooseFunction });
table.show(window.innerWidth >= TABLE_FROM_WIDTH && profile.total[0] > 0);
const chart = new Chart(byId("chart"), profile, palette, {
  onHover: (node, event) => details.show(node, event),
  onZoom: (node) => {
    if (chart.flipped) scrollToBottom(belowPane);
    showPath(node);
    refresh();
  },
});

function showPath(node) {
  const ancestors = [];
  for (let at = node; at >= 0; at = profile.parent[at]) ancestors.unshift(at);
  const crumb = (at) => {
    const button = element("button", "", profile.functionOf(at).name);
    button.type = "button";
    button.title = profile.functionOf(at).name;
    if (at === node) button.setAttribute("aria-current", "location");
    button.addEventListener("click", () => chart.zoom(at));
    return button;
  };
  let shown = ancestors.map(crumb);
  if (shown.length > MAX_PATH) {
    const left = shown.length - MAX_PATH + 1;
    shown = [...shown.slice(0, 2), element("span", "more", `${left} more`), ...shown.slice(2 + left)];
  }
  byId("path").replaceChildren(...shown);
  byId("reset").disabled = node === 0;
}

/** Bring all that is beside the drawing up to date with zoom and search. */
function refresh() {
  const { drawn, all } = chart.drawn();
  byId("drawn").textContent =
    drawn === all
      ? count(all) + (all === 1 ? " frame" : " frames")
      : `${count(drawn)} of ${count(all)} frames drawn, the others are narrower than ${MIN_WIDTH} px: zoom in`;
  const whole = profile.total[chart.focus];
  if (matches) {
    const matched = profile.matchedSamples(matches, chart.focus);
    byId("matched").textContent = `${percent(matched, whole)} matched`;
    byId("matched").title = `${count(matched)} of ${samples(whole)}${chart.focus ? " in the frame zoomed to" : ""}`;
  }
  table.update(chart.focus, chosen === null ? matches : null, chosen);
}

function applySearch() {
  let error;
  if (chosen === null) {
    ({ matches = null, error } = matchNames(profile.functions, search.value));
  } else {
    matches = new Uint8Array(profile.functions.length);
    matches[chosen] = 1;
  }
  byId("matched").textContent = error ?? "";
  byId("matched").title = "";
  byId("matched").classList.toggle("error", error !== undefined);
  byId("search-key").hidden = search.value !== "";
  chart.mark(matches);
  refresh();
}

function chooseFunction(fn) {
  chosen = fn === chosen ? null : fn;
  search.value = chosen === null ? "" : profile.functions[fn].name;
  applySearch();
}

let searchTimer = 0;
search.addEventListener("input", () => {
  chosen = null;
  clearTimeout(searchTimer);
  searchTimer = setTimeout(applySearch, SEARCH_DELAY);
});

function reset() {
  clearTimeout(searchTimer);
  chosen = null;
  search.value = "";
  applySearch();
  if (chart.focus !== 0) chart.zoom(0);
}

/** Scroll so that the root's end of a flipped drawing is as far from the pane's bottom as stated. */
function scrollToBottom(below) {
  pane.scrollTop = pane.scrollHeight - pane.clientHeight - below;
}

function flip() {
  chart.flip();
  byId("flip").setAttribute("aria-pressed", String(chart.flipped));
  if (chart.flipped) scrollToBottom(0);
  else pane.scrollTop = 0;
}

function toggleTable() {
  table.show(!table.shown);
  byId("top").setAttribute("aria-pressed", String(table.shown));
}

function toggleTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  chart.redraw();
}

darkWanted.addEventListener("change", ({ matches: dark }) => {
  setTheme(dark ? "dark" : "light");
  chart.redraw();
});
byId("reset").addEventListener("click", () => chart.zoom(0));
byId("flip").addEventListener("click", flip);
byId("top").addEventListener("click", toggleTable);
byId("theme").addEventListener("click", toggleTheme);
byId("help").addEventListener("click", () => byId("about").showModal());
byId("chart").addEventListener("mousemove", (event) => details.move(event));
pane.addEventListener("scroll", () => {
  belowPane = pane.scrollHeight - pane.clientHeight - pane.scrollTop;
  details.show(null);
});

const KEYS = {
  "/": () => search.focus(),
  "?": () => byId("about").showModal(),
  Escape: reset,
  Backspace: () => chart.focus !== 0 && chart.zoom(profile.parent[chart.focus]),
  f: flip,
  t: toggleTable,
  d: toggleTheme,
};

document.addEventListener("keydown", (event) => {
  if (byId("about").open) return;
  const typing = event.target === search;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f" && !typing) {
    // A second Ctrl-F, from within the field, opens the browser's own search.
    event.preventDefault();
    search.focus();
    search.select();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  if (event.key === "Escape") search.blur();
  action();
});

new ResizeObserver(() => {
  if (chart.resize()) refresh();
}).observe(byId("chart"));

byId("top").setAttribute("aria-pressed", String(table.shown));
showPath(0);
refresh();
