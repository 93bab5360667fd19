// The run document, read with care: a missing or odd entry shows as nothing, never as an error.

const OP = 0;
const LEAF = 1;
const INPUT = 2;
const KNOWN_VERSION = 1;

class Run {
  constructor(raw) {
    this.raw = raw && typeof raw === "object" ? raw : {};
    this.strings = listOf(this.raw.strings);
    this.nodes = this.raw.nodes && typeof this.raw.nodes === "object" ? this.raw.nodes : {};
    this.count = 0;
    for (const name of ["op", "inputs", "shape", "kind"])
      this.count = Math.max(this.count, listOf(this.nodes[name]).length);
    this.inputs = this.readInputs();
    this.readUsers();
    this.readOutputs();
    this.readEvents();
  }

  text(index) {
    return Number.isInteger(index) && index >= 0 && index < this.strings.length ? String(this.strings[index]) : "";
  }

  cell(column, node, otherwise) {
    const values = this.nodes[column];
    const value = Array.isArray(values) ? values[node] : undefined;
    return value === undefined || value === null ? otherwise : value;
  }

  entry(list, index) {
    return Number.isInteger(index) && index >= 0 ? listOf(this.raw[list])[index] || null : null;
  }

  readInputs() {
    const all = new Array(this.count);
    for (let node = 0; node < this.count; node += 1) {
      const given = this.cell("inputs", node, null);
      all[node] = Array.isArray(given)
        ? given.filter((input) => Number.isInteger(input) && input >= 0 && input < this.count && input !== node)
        : [];
    }
    return all;
  }

  // Who uses a node, as one flat array with an offset for each node.
  readUsers() {
    this.userStart = new Int32Array(this.count + 1);
    for (const inputs of this.inputs) for (const input of inputs) this.userStart[input + 1] += 1;
    for (let node = 0; node < this.count; node += 1) this.userStart[node + 1] += this.userStart[node];
    this.userList = new Int32Array(this.userStart[this.count]);
    const next = this.userStart.slice();
    for (let node = 0; node < this.count; node += 1) {
      for (const input of this.inputs[node]) this.userList[next[input]++] = node;
    }
  }

  users(node) {
    return [...new Set(this.userList.subarray(this.userStart[node], this.userStart[node + 1]))];
  }

  useCount(node) {
    return this.userStart[node + 1] - this.userStart[node];
  }

  // An op with several outputs is one box: its later outputs are drawn as the first.
  readOutputs() {
    this.primary = new Int32Array(this.count);
    this.outputs = new Map();
    for (let node = 0; node < this.count; node += 1) {
      const number = this.cell("out", node, 0);
      const first = number > 0 && this.has(node - number) ? node - number : node;
      const same =
        first === node || (this.primary[first] === first && this.cell("op", first, -1) === this.cell("op", node, -1));
      this.primary[node] = same ? first : node;
      if (this.primary[node] === node) continue;
      if (!this.outputs.has(first)) this.outputs.set(first, []);
      this.outputs.get(first).push(node);
    }
  }

  // Steps count from 1; 0 is "the whole run, nothing is being stepped through".
  readEvents() {
    this.events = listOf(this.raw.events).filter((event) => Array.isArray(event));
    this.forwardAt = new Int32Array(this.count);
    this.backwardAt = new Int32Array(this.count);
    this.decisions = new Map();
    this.events.forEach((event, index) => {
      const [kind, node, outputs] = event;
      if (kind === "g" || !this.has(node)) return;
      // An op with several outputs makes them in one step.
      const last = (kind === "f" || kind === "b") && outputs > 1 ? Math.min(node + outputs, this.count) : node + 1;
      const times = kind === "f" ? this.forwardAt : kind === "b" || kind === "a" ? this.backwardAt : null;
      if (times) for (let made = node; made < last; made += 1) times[made] = times[made] || index + 1;
      if (kind === "d") {
        if (!this.decisions.has(node)) this.decisions.set(node, []);
        this.decisions
          .get(node)
          .push({ how: this.text(event[2]), outcome: this.text(event[3]), site: event[4], step: index + 1 });
      }
    });
  }

  has(node) {
    return Number.isInteger(node) && node >= 0 && node < this.count;
  }

  kind(node) {
    return this.cell("kind", node, OP);
  }

  op(node) {
    const name = this.text(this.cell("op", node, -1));
    if (name) return name;
    return ["op", "leaf", "input"][this.kind(node)] || "value";
  }

  // What a node is called in a drawing: a parameter by its name, a constant by its value, anything else by its op.
  label(node) {
    return this.text(this.cell("name", node, -1)) || this.constant(node) || this.op(node);
  }

  constant(node) {
    const value = this.kind(node) === INPUT ? this.value(node, "value") : null;
    const plain = value && ["number", "string", "boolean"].includes(typeof value.text);
    return plain ? shortened(numberText(value.text), 20) : "";
  }

  dtype(node) {
    return typeText(this.text(this.cell("dtype", node, -1)));
  }

  // Where a value is, if that is not the CPU.
  device(node) {
    if (!this.devices) {
      const rows = Array.isArray(this.raw.devices) ? this.raw.devices : [];
      this.devices = new Map(rows.filter(Array.isArray).map(([at, name]) => [at, this.text(name)]));
    }
    return this.devices.get(node) || "";
  }

  shape(node) {
    const shape = this.cell("shape", node, null);
    return `${this.dtype(node)}${Array.isArray(shape) ? `[${shape.join(",")}]` : ""}`;
  }

  siteAt(index) {
    const site = this.entry("sites", index);
    if (!Array.isArray(site)) return null;
    const file = this.entry("files", site[0]);
    return {
      index,
      file: site[0],
      // Some name files by their whole path, which is too long to read everywhere.
      name: file && file.name !== undefined ? String(file.name).replace(/^.*[\\/](?=[^\\/])/, "") : "?",
      line: site[1],
      inside: this.text(site[2]),
      code: file && file.code && typeof file.code === "object" ? file.code : {},
    };
  }

  site(node) {
    return this.siteAt(this.cell("site", node, -1));
  }

  place(node) {
    const site = this.site(node);
    return site ? `${site.name}:${site.line}` : "";
  }

  module(index) {
    const entry = this.entry("modules", index);
    return Array.isArray(entry) ? { path: this.text(entry[0]), kind: this.text(entry[1]), parent: entry[2] } : null;
  }

  callModule(index) {
    const call = this.entry("calls", index);
    return Array.isArray(call) ? this.module(call[0]) : null;
  }

  modulePath(node) {
    const found = this.callModule(this.cell("call", node, -1));
    return found ? found.path || found.kind : "";
  }

  stats(node, column) {
    const entry = this.entry("stats", this.cell(column, node, -1));
    if (!Array.isArray(entry)) return null;
    const [min, max, mean, std, nan, inf, zero, histogram, low, high] = entry;
    return {
      min,
      max,
      mean,
      std,
      nan: nan || 0,
      inf: inf || 0,
      zero: zero || 0,
      histogram: listOf(histogram),
      low,
      high,
      looked: entry[10],
    };
  }

  value(node, column) {
    const entry = this.entry("values", this.cell(column, node, -1));
    return entry && typeof entry === "object" ? entry : null;
  }

  // A value of at most three elements in a few characters; otherwise nothing.
  shortValue(node, column) {
    const value = this.value(node, column);
    if (!value || value.whole === false) return "";
    const several = Array.isArray(value.text);
    const elements = several ? value.text : [value.text];
    if (elements.length > 3 || elements.some((element) => !["number", "string", "boolean"].includes(typeof element)))
      return "";
    const text = elements.map((element) => shortNumber(element)).join(", ");
    return several ? `[${text}]` : text;
  }

  isBad(node, column) {
    const entry = this.entry("stats", this.cell(column, node, -1));
    return Array.isArray(entry) && (entry[4] > 0 || entry[5] > 0);
  }

  badWord(node) {
    const entries = ["stats", "grad"].map((column) => this.entry("stats", this.cell(column, node, -1)));
    return entries.some((entry) => Array.isArray(entry) && entry[4] > 0) ? "NaN" : "inf";
  }

  // The first node, in order of the run, whose value or gradient is not a number.
  firstBad() {
    for (const [kind, node] of this.events) {
      if (!this.has(node)) continue;
      if (kind === "f" && this.isBad(node, "stats")) return { node, what: "value" };
      if ((kind === "b" || kind === "a") && this.isBad(node, "grad")) return { node, what: "gradient" };
    }
    for (let node = 0; node < this.count; node += 1) if (this.isBad(node, "stats")) return { node, what: "value" };
    return null;
  }
}

function readRun() {
  try {
    return new Run(JSON.parse(byId("run").textContent));
  } catch (error) {
    const run = new Run({});
    run.unreadable = String(error.message || error);
    return run;
  }
}
