// SPDX-License-Identifier: Apache-2.0
// How numbers read, and elements that hold text. Names come from the profiled programs: they are only ever text.

const COUNT = new Intl.NumberFormat("en-US");

export const count = (value) => COUNT.format(value);

export function samples(value) {
  return value === 1 ? "1 sample" : `${count(value)} samples`;
}

/** A share in per cent: two digits, but never 0.00% of something or 100.00% of less than all. */
export function percent(part, whole) {
  if (!(whole > 0)) return "0%";
  const value = (100 * part) / whole;
  if (part > 0 && value < 0.01) return "<0.01%";
  if (part < whole && value > 99.99) return ">99.99%";
  return `${value.toFixed(2)}%`;
}

/** The last part of a path. */
export const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children); // strings become text nodes
  return made;
}
