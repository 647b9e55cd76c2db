// SPDX-License-Identifier: Apache-2.0
// What is said of the frame under the pointer: beside it, and in the line at the foot of the page.

import { KIND_LABELS } from "./colours.js";
import { count, element, percent, samples } from "./text.js";

const GAP = 14;

export class Details {
  constructor(profile) {
    this.profile = profile;
    this.tooltip = document.getElementById("tooltip");
    this.line = document.getElementById("details");
    this.show(null);
  }

  show(node, event) {
    if (node === null) {
      this.tooltip.hidden = true;
      this.line.replaceChildren(element("span", "hint", "Point at a frame for details, click to zoom."));
      return;
    }
    const fn = this.profile.functionOf(node);
    const shares = this.#shares(node);
    this.tooltip.replaceChildren(
      element("div", "name", fn.name),
      ...(fn.detail ? [element("div", "file", fn.detail)] : []),
      element("div", "kind", element("span", `swatch ${fn.kind}`), KIND_LABELS[fn.kind]),
      element("dl", "", ...shares.flatMap(([label, value]) => [element("dt", "", label), element("dd", "", value)])),
    );
    this.line.replaceChildren(
      element("span", "name", fn.name),
      ...(fn.detail ? [element("span", "file", fn.detail)] : []),
      element("span", "share", `${samples(this.profile.total[node])}, ${percent(this.profile.total[node], this.profile.total[0])}`),
    );
    this.tooltip.hidden = false;
    this.move(event);
  }

  move(event) {
    if (this.tooltip.hidden) return;
    const { offsetWidth: width, offsetHeight: height } = this.tooltip;
    let left = event.clientX + GAP;
    if (left + width > window.innerWidth - 4) left = Math.max(4, event.clientX - width - GAP);
    let top = event.clientY + GAP;
    if (top + height > window.innerHeight - 4) top = Math.max(4, event.clientY - height - GAP);
    this.tooltip.style.transform = `translate(${left}px, ${top}px)`;
  }

  #shares(node) {
    const { total, self, parent } = this.profile;
    const rows = [
      ["Samples", count(total[node])],
      ["of all", percent(total[node], total[0])],
    ];
    if (parent[node] >= 0) rows.push(["of parent", percent(total[node], total[parent[node]])]);
    rows.push(["Self", `${count(self[node])} (${percent(self[node], total[0])})`]);
    return rows;
  }
}
