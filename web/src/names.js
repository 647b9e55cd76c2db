// SPDX-License-Identifier: Apache-2.0
// A shorter form of C++ and Rust names, for where the whole one has no room.

const PAIRS = { "<": ">", "(": ")" };

/** The index after the bracket that closes the one at start, or -1. */
function skipBracket(name, start) {
  const open = name[start];
  const close = PAIRS[open];
  let depth = 0;
  for (let i = start; i < name.length; i++) {
    if (name[i] === open) depth++;
    else if (name[i] === close && name[i - 1] !== "-") depth--; // "->" closes nothing
    if (depth === 0) return i + 1;
  }
  return -1;
}

/**
 * The name with template arguments and parameters as "<…>" and "(…)". Only brackets right after a word are such:
 * "(anonymous namespace)::f", Go's "net/http.(*conn).serve" and Rust's "<T as Trait>::f" keep theirs.
 */
export function shortName(name) {
  let short = "";
  for (let i = 0; i < name.length; ) {
    const operator = /^operator(\(\)|[-<>=]+)/.exec(name.slice(i, i + 11));
    if (operator && !/\w/.test(name[i - 1] ?? "")) {
      short += operator[0];
      i += operator[0].length;
      continue;
    }
    const isArguments = (name[i] === "<" && /[\w:]/.test(name[i - 1] ?? "")) || (name[i] === "(" && /[\w>)\]]/.test(name[i - 1] ?? ""));
    const end = isArguments ? skipBracket(name, i) : -1;
    if (end > i + 2) {
      short += `${name[i]}\u2026${PAIRS[name[i]]}`;
      i = end;
    } else {
      short += name[i++];
    }
  }
  return short;
}
