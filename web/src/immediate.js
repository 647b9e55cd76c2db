// SPDX-License-Identifier: Apache-2.0
// Stands in for d3-transition (build.mjs): what d3-flame-graph would animate takes its final value at once.

import { selection } from "d3-selection";

function itself() {
  return this;
}

Object.assign(selection.prototype, { transition: itself, duration: itself, delay: itself, ease: itself });
