// SPDX-License-Identifier: Apache-2.0
// Bundles src/ into dist/flamegraph_template.html: one file, script and style inline, and a place for the data.

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

// pyprof/export/flamegraph.py replaces it; it must be in the page once.
const DATA_PLACE = "@PROFILE@";

const root = dirname(fileURLToPath(import.meta.url));

const result = await esbuild.build({
  absWorkingDir: root,
  entryPoints: ["src/main.js"],
  outdir: "dist",
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  format: "iife",
  target: ["chrome100", "firefox100", "safari15.4"],
  charset: "ascii",
  legalComments: "none",
  logLevel: "warning",
  // Frames are drawn at once: d3-transition would make four timers for each of thousands of frames.
  alias: { "d3-transition": "./src/immediate.js" },
});

function output(suffix) {
  const text = result.outputFiles.find((file) => file.path.endsWith(suffix)).text.trim();
  if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`the bundled ${suffix} would end its own element`);
  return text;
}

function bundledPackages() {
  const names = new Set();
  for (const { inputs } of Object.values(result.metafile.outputs)) {
    for (const [path, { bytesInOutput }] of Object.entries(inputs)) {
      const match = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
      if (match && bytesInOutput > 0) names.add(match[1]);
    }
  }
  return [...names].sort();
}

/** The licences of all that is in the page, each text once, below the packages that it is for. */
function licences() {
  const packagesByText = new Map();
  for (const name of bundledPackages()) {
    const folder = join(root, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = ["LICENSE", "LICENSE.md", "LICENSE.txt"].map((base) => join(folder, base)).find(existsSync);
    if (!file) throw new Error(`${name} states no licence text`);
    const text = readFileSync(file, "utf8").trim();
    packagesByText.set(text, [...(packagesByText.get(text) ?? []), `${name} ${version} (${license})`]);
  }
  return [...packagesByText].map(([text, names]) => `${names.join("\n")}\n\n${text}`).join(`\n\n${"=".repeat(72)}\n\n`);
}

const escapeHtml = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const cspHash = (text) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

const script = output(".js");
const style = output(".css");
const parts = {
  CSP: [
    "default-src 'none'",
    `script-src ${cspHash(script)}`,
    `style-src ${cspHash(style)}`,
    "img-src data:",
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; "),
  SCRIPT: script,
  STYLE: style,
  LICENCES: escapeHtml(licences()),
};

const page = readFileSync(join(root, "src", "page.html"), "utf8").replace(/@([A-Z]+)@/g, (place, key) => parts[key] ?? place);
if (page.split(DATA_PLACE).length !== 2) throw new Error(`${DATA_PLACE} must be in the page once`);

mkdirSync(join(root, "dist"), { recursive: true });
writeFileSync(join(root, "dist", "flamegraph_template.html"), page);
