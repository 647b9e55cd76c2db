// SPDX-License-Identifier: Apache-2.0
// The drawing itself: d3-flame-graph over the decoded profile.

import flamegraph from "d3-flame-graph";
import { select } from "d3-selection";
import { shortName } from "./names.js";

const ROW_HEIGHT = 20; // px
const LETTER_WIDTH = 7; // px, of the labels' font
const LABEL_MARGIN = 10; // px, both sides
const MIN_LABELLED = 35; // px; d3-flame-graph hides the labels of narrower frames
// What is narrower cannot be told apart, and thousands of such frames would make each step slow.
export const MIN_WIDTH = 1;

/** The root is at the top; flip() puts it at the bottom. onHover gets a node and the event, or null. */
export class Chart {
  constructor(element, profile, palette, { onHover, onZoom }) {
    this.element = element;
    this.profile = profile;
    this.palette = palette;
    this.focus = 0;
    this.matches = null;

    const hover = () => {};
    hover.show = (event, d) => onHover(d.data.index, event);
    hover.hide = () => onHover(null);
    this.graph = flamegraph()
      .width(this.#availableWidth())
      .cellHeight(ROW_HEIGHT)
      .minFrameSize(MIN_WIDTH)
      .inverted(true)
      .resetHeightOnZoom(true)
      .tooltip(hover)
      .getName((d) => this.#label(d))
      .setLabelHandler(() => "")
      .setDetailsHandler(() => {})
      .setColorMapper((d) => this.#fill(d.data.index))
      .onClick((d) => {
        this.focus = d.data.index;
        onZoom(this.focus);
      });
    select(element).datum(profile.tree()).call(this.graph);
    this.frames = new Array(profile.size);
    select(element)
      .datum()
      .each((frame) => {
        this.frames[frame.data.index] = frame;
      });
  }

  #availableWidth() {
    return Math.max(200, Math.floor(this.element.clientWidth));
  }

  #label(frame) {
    const { name } = this.profile.functionOf(frame.data.index);
    const width = (frame.x1 - frame.x0) * this.graph.width();
    const fits = name.length * LETTER_WIDTH + LABEL_MARGIN <= width;
    return fits || width < MIN_LABELLED ? name : shortName(name);
  }

  #fill(node) {
    const fn = this.profile.nodeFunction[node];
    return this.palette.fill(fn, this.matches && Boolean(this.matches[fn]));
  }

  get flipped() {
    return !this.graph.inverted();
  }

  flip() {
    this.graph.inverted(!this.graph.inverted());
    this.element.classList.toggle("flipped", this.flipped);
    this.redraw();
  }

  redraw() {
    this.graph.update();
  }

  resize() {
    if (this.#availableWidth() === this.graph.width()) return false;
    this.graph.width(this.#availableWidth());
    this.redraw();
    return true;
  }

  zoom(node) {
    this.graph.zoomTo(this.frames[node]);
  }

  /** Mark the functions whose entry is set; null ends it. */
  mark(matches) {
    this.matches = matches;
    this.redraw();
  }

  /** How many of the frames below the one zoomed to, itself too, are drawn, and how many there are. */
  drawn() {
    const inSubtree = this.profile.end[this.focus] - this.focus;
    const all = this.element.querySelectorAll("g.frame").length;
    return { drawn: all - this.profile.depth[this.focus], all: inSubtree };
  }
}
