// SPDX-License-Identifier: Apache-2.0
// Colours by kind of frame, for both themes, each in a few close shades so that neighbours can be told apart.

export const KIND_LABELS = {
  all: "all",
  process: "process",
  thread: "thread",
  kernel: "kernel",
  native: "native",
  interpreter: "interpreter",
  unknown: "unknown",
};

// [hue, saturation, lightness]: dark text on light, light text on dark has a contrast of 4.5 or more on all of them.
const FILLS = {
  light: {
    all: [220, 14, 84],
    process: [168, 38, 70],
    thread: [168, 26, 80],
    kernel: [12, 82, 78],
    native: [211, 72, 77],
    interpreter: [43, 88, 66],
    unknown: [230, 7, 80],
    match: [312, 82, 74],
  },
  dark: {
    all: [220, 10, 30],
    process: [168, 44, 25],
    thread: [168, 26, 30],
    kernel: [10, 50, 41],
    native: [211, 46, 38],
    interpreter: [36, 64, 31],
    unknown: [230, 5, 37],
    match: [312, 56, 44],
  },
};
const FADED = { light: [0.25, 0.6], dark: [0.35, -0.45] };
const SHADES = 5;

function shadeOf(name) {
  let hash = 2166136261; // FNV-1a
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return (hash >>> 8) % SHADES;
}

function hsl([hue, saturation, lightness]) {
  return `hsl(${hue},${saturation.toFixed(1)}%,${lightness.toFixed(1)}%)`;
}

export class Palette {
  constructor(functions) {
    this.shades = functions.map(({ name, kind }) => (kind === "all" ? 2 : shadeOf(name)));
    this.functions = functions;
    this.use("light");
  }

  use(theme) {
    this.theme = theme;
    this.cache = new Map();
  }

  legend(kind) {
    return hsl(FILLS[this.theme][kind]);
  }

  /** The fill of a frame; marked is true or false while a search is on, else null. */
  fill(fn, marked) {
    const kind = marked ? "match" : this.functions[fn].kind;
    const key = `${kind} ${this.shades[fn]} ${marked === false}`;
    let colour = this.cache.get(key);
    if (colour === undefined) {
      const [hue, saturation, lightness] = FILLS[this.theme][kind];
      const shift = this.shades[fn] - (SHADES - 1) / 2;
      colour = [hue + 2.5 * shift, saturation, lightness + 1.5 * shift];
      if (marked === false) {
        const [saturationFactor, towards] = FADED[this.theme];
        colour[1] *= saturationFactor;
        colour[2] += towards > 0 ? (100 - colour[2]) * towards : colour[2] * towards;
      }
      colour = hsl(colour);
      this.cache.set(key, colour);
    }
    return colour;
  }
}
