// SPDX-License-Identifier: Apache-2.0
// What was recorded, and where each sample went.

import { count, element, percent } from "./text.js";

function utc(milliseconds) {
  const date = new Date(milliseconds);
  return Number.isNaN(date.getTime()) ? "unknown" : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function duration(seconds) {
  if (seconds < 120) return `${Number(seconds.toFixed(seconds < 10 ? 2 : 1))} s`;
  const whole = Math.round(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

const sum = (reasons) => Object.values(reasons).reduce((a, b) => a + b, 0);

function reasonList(reasons) {
  const entries = Object.entries(reasons).filter(([, samples]) => samples > 0);
  entries.sort(([, a], [, b]) => b - a);
  return entries.map(([reason, samples]) => `${reason.replaceAll("_", " ")} ${count(samples)}`);
}

function counted(reasons, whole) {
  const total = sum(reasons);
  const value = element("dd", "", element("b", "", count(total)));
  if (total > 0) {
    value.append(` (${percent(total, whole)})`);
    const list = reasonList(reasons);
    value.append(element("span", "reasons", `: ${list.join(", ")}`));
    value.title = list.join("\n");
  }
  return value;
}

/** Fill the list of facts. */
export function showFacts(list, meta) {
  const { taken, reported, lost, incomplete } = meta.accounting;
  const fact = (row, id, label, value) => {
    const made = element("div", "", element("dt", "", label), value instanceof Node ? value : element("dd", "", value));
    made.id = `fact-${id}`;
    row.append(made);
    return made;
  };
  const recorded = element("div", "row");
  fact(recorded, "host", "Host", meta.host || "unknown");
  fact(recorded, "started", "Started", utc(meta.started_at));
  fact(recorded, "duration", "Duration", duration(meta.duration));
  fact(recorded, "rate", "Rate", `${count(meta.hz)} Hz per CPU, ${meta.event}`);
  const accounted = element("div", "row");
  fact(accounted, "taken", "Samples taken", count(taken));
  fact(accounted, "reported", "Reported", count(reported));
  fact(accounted, "lost", "Lost", counted(lost, taken)).classList.toggle("warn", sum(lost) > 0);
  fact(accounted, "incomplete", "Incomplete", counted(incomplete, reported));
  list.append(recorded, accounted);
}
