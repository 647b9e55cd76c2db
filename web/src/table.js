// SPDX-License-Identifier: Apache-2.0
// The table of hottest functions below the frame that is zoomed to.

import { shortName } from "./names.js";
import { baseName, count, element, percent, samples } from "./text.js";

const MAX_ROWS = 250;
const NOT_FUNCTIONS = new Set(["all", "process", "thread"]);

export class Table {
  constructor(profile, { onSelect }) {
    this.profile = profile;
    this.onSelect = onSelect;
    this.panel = document.getElementById("table");
    this.body = document.getElementById("rows");
    this.rest = document.getElementById("table-rest");
    this.scope = document.getElementById("table-scope");
    this.order = "self";
    this.selected = null;
    for (const button of this.panel.querySelectorAll("button[data-sort]")) {
      button.addEventListener("click", () => {
        this.order = button.dataset.sort;
        for (const other of this.panel.querySelectorAll("button[data-sort]")) {
          other.closest("th").setAttribute("aria-sort", other === button ? "descending" : "none");
        }
        this.#draw();
      });
    }
    this.body.addEventListener("click", (event) => this.#choose(event));
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.#choose(event);
      }
    });
  }

  get shown() {
    return !this.panel.hidden;
  }

  show(shown) {
    this.panel.hidden = !shown;
    this.#draw();
  }

  /** root: the frame zoomed to; matches: which functions to list, null for all; selected: the one marked, or null. */
  update(root, matches, selected) {
    this.root = root;
    this.matches = matches;
    this.selected = selected;
    this.#draw();
  }

  #choose(event) {
    const row = event.target.closest("tr");
    if (row) this.onSelect(Number(row.dataset.function));
  }

  #draw() {
    if (!this.shown || this.root === undefined) return;
    const { profile, root } = this;
    const sums = profile.functionSums(root);
    const whole = profile.total[root];
    const listed = profile.functions
      .filter(({ index, kind }) => !NOT_FUNCTIONS.has(kind) && sums.total[index] > 0 && (!this.matches || this.matches[index]))
      .sort(
        (a, b) =>
          sums[this.order][b.index] - sums[this.order][a.index] ||
          sums.total[b.index] - sums.total[a.index] ||
          a.index - b.index,
      );
    this.scope.textContent = root === 0 ? "" : `in ${profile.functionOf(root).name}`;
    this.scope.title = this.scope.textContent;
    this.body.replaceChildren(...listed.slice(0, MAX_ROWS).map((fn) => this.#row(fn, sums, whole)));
    if (listed.length > MAX_ROWS) {
      this.rest.textContent = `${count(listed.length - MAX_ROWS)} more functions: search to list them`;
    } else {
      this.rest.textContent = listed.length === 0 ? "No function matches" : "";
    }
  }

  #row(fn, sums, whole) {
    const cell = (value) => {
      const made = element("td", "number", value === 0 ? "\u2013" : percent(value, whole));
      made.title = samples(value);
      return made;
    };
    const name = element("td", "name", element("span", `swatch ${fn.kind}`), element("span", "function", shortName(fn.name)));
    if (fn.detail) name.append(element("span", "file", baseName(fn.detail)));
    name.title = fn.detail ? `${fn.name}\n${fn.detail}` : fn.name;
    const row = element("tr", "", cell(sums.self[fn.index]), cell(sums.total[fn.index]), name);
    row.dataset.function = fn.index;
    row.tabIndex = 0;
    row.setAttribute("aria-selected", String(fn.index === this.selected));
    return row;
  }
}
