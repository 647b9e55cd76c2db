// SPDX-License-Identifier: Apache-2.0
// The embedded profile: decoding, and the sums that the page shows. The format is described in
// pyprof/export/flamegraph.py.

const FORMAT = 1;

/** Nodes in depth-first order, node 0 the root; a subtree is the range from its node to end[node]. */
export class Profile {
  constructor(data) {
    if (data.format !== FORMAT) throw new Error(`this page reads format ${FORMAT}, its data has ${data.format}`);
    this.meta = data;
    this.functions = data.functions.name.map((name, i) => ({
      index: i,
      name: data.strings[name],
      kind: data.kinds[data.functions.kind[i]],
      detail: data.strings[data.functions.detail[i]],
    }));
    this.nodeFunction = data.nodes.function;
    this.depth = data.nodes.depth;
    this.self = data.nodes.self;
    this.size = this.depth.length;
    this.total = Float64Array.from(this.self);
    this.end = new Uint32Array(this.size);
    this.parent = new Int32Array(this.size).fill(-1);

    const ancestors = [];
    for (let i = 0; i < this.size; i++) {
      this.end[i] = i + 1;
      ancestors[this.depth[i]] = i;
      if (i > 0) this.parent[i] = ancestors[this.depth[i] - 1];
    }
    for (let i = this.size - 1; i > 0; i--) {
      const parent = this.parent[i];
      this.total[parent] += this.total[i];
      this.end[parent] = Math.max(this.end[parent], this.end[i]);
    }
  }

  functionOf(node) {
    return this.functions[this.nodeFunction[node]];
  }

  /** The nodes as objects that refer to their children, as d3-flame-graph takes them. */
  tree() {
    const objects = new Array(this.size);
    for (let i = 0; i < this.size; i++) {
      objects[i] = { index: i, value: this.total[i], children: undefined };
      if (i > 0) (objects[this.parent[i]].children ??= []).push(objects[i]);
    }
    return objects[0];
  }

  /** Samples below a node (in it too) that contain a function for which matches[function] is set. */
  matchedSamples(matches, root) {
    let sum = 0;
    for (let i = root; i < this.end[root]; ) {
      if (matches[this.nodeFunction[i]]) {
        sum += this.total[i];
        i = this.end[i];
      } else {
        i++;
      }
    }
    return sum;
  }

  /** Self and total samples of each function below a node; a recursive function counts once a sample. */
  functionSums(root) {
    const self = new Float64Array(this.functions.length);
    const total = new Float64Array(this.functions.length);
    const open = new Uint32Array(this.functions.length);
    const stack = [];
    for (let i = root; i < this.end[root]; i++) {
      while (stack.length > this.depth[i] - this.depth[root]) open[stack.pop()]--;
      const fn = this.nodeFunction[i];
      self[fn] += this.self[i];
      if (open[fn] === 0) total[fn] += this.total[i];
      open[fn]++;
      stack.push(fn);
    }
    return { self, total };
  }
}
