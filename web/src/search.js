// SPDX-License-Identifier: Apache-2.0
// What a search text matches.

/**
 * A mark for each function whose name contains the text, in either case; /text/ is a regular expression.
 * Returns {matches} (null for an empty text), or {error} for an expression that is not one.
 */
export function matchNames(functions, text) {
  if (text === "") return { matches: null };
  let test;
  const expression = /^\/(.+)\/$/.exec(text);
  if (expression) {
    try {
      const regexp = new RegExp(expression[1], "i");
      test = (name) => regexp.test(name);
    } catch {
      return { error: "not a regular expression" };
    }
  } else {
    const wanted = text.toLowerCase();
    test = (name) => name.toLowerCase().includes(wanted);
  }
  return { matches: Uint8Array.from(functions, ({ name, kind }) => Number(kind !== "all" && test(name))) };
}
