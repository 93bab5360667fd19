// What keeps a large run readable: stretches that repeat become one box (×37), and a box never holds more than a
// screenful, because longer rows are cut into parts.

// A graph up to this size is shown as it is.
const SMALL = 60;
const LONGEST_PERIOD = 32;
const FEWEST_REPEATS = 3;
const MOST_CHILDREN = 90;
const PART = 45;

class Folding {
  constructor(run, groups) {
    this.run = run;
    this.groups = groups;
    this.numbers = new Map();
  }

  fold() {
    const small = this.run.count <= SMALL;
    for (const group of [...this.groups.walk()].reverse()) {
      if (!small) group.children = this.foldRepeats(group);
      group.signature = this.number(this.wordOf(group));
      group.children = this.cut(group.children, group);
    }
  }

  number(word) {
    let found = this.numbers.get(word);
    if (found === undefined) this.numbers.set(word, (found = this.numbers.size + 1));
    return found;
  }

  // Two with the same signature have the same structure: the same ops from the same lines, in the same order.
  signature(child) {
    if (typeof child !== "number") return child.signature;
    const run = this.run;
    const kind = run.kind(child);
    if (kind === LEAF) return this.number(`leaf ${run.shape(child)}`);
    return this.number(
      `${kind} ${run.cell("op", child, -1)} ${run.cell("dtype", child, -1)} ${run.cell("site", child, -1)}`,
    );
  }

  wordOf(group) {
    // layers.0 and layers.11 are alike where all that is in them is.
    const name = group.kind === "call" ? `${group.module} ${(group.path || "").replace(/\d+/g, "#")}` : group.kind;
    let [low, high] = [17, 31];
    for (const child of group.children) {
      const sign = this.signature(child);
      low = Math.imul(low, 16777619) ^ sign;
      high = (Math.imul(high, 1540483477) + sign) | 0;
    }
    return `${name} ${group.children.length} ${low} ${high}`;
  }

  // How often the stretch of `period` signs at `start` follows upon itself.
  repeats(signs, start, period) {
    let end = start + period;
    while (end < signs.length && signs[end] === signs[end - period]) end += 1;
    return Math.floor((end - start) / period);
  }

  foldRepeats(group) {
    const children = group.children;
    const signs = children.map((child) => this.signature(child));
    const folded = [];
    let start = 0;
    while (start < children.length) {
      let best = null;
      const longest = Math.min(LONGEST_PERIOD, Math.floor((children.length - start) / FEWEST_REPEATS));
      for (let period = 1; period <= longest; period += 1) {
        const times = this.repeats(signs, start, period);
        if (times >= FEWEST_REPEATS && (!best || times * period > best.times * best.period)) best = { period, times };
      }
      const end = best ? start + best.period * best.times : start;
      if (best && this.worthFolding(children.slice(start, end))) {
        folded.push(this.repeat(group, children.slice(start, end), best.period));
        start = end;
      } else {
        folded.push(children[start]);
        start += 1;
      }
    }
    return folded;
  }

  worthFolding(children) {
    return (
      children.reduce((sum, child) => sum + sizeOf(child), 0) >= 8 && children.some((child) => !this.isLeaf(child))
    );
  }

  isLeaf(child) {
    return typeof child === "number" && this.run.kind(child) === LEAF;
  }

  repeat(parent, children, period) {
    const fold = new Group("repeat", "", parent);
    for (let start = 0; start < children.length; start += period) {
      const stretch = children.slice(start, start + period);
      const [only] = stretch;
      const alone = period === 1 && typeof only !== "number";
      const unit = alone ? only : this.gather("unit", stretch, fold);
      unit.unit = fold.children.length;
      unit.parent = fold;
      if (!alone) unit.label = `time ${unit.unit + 1}`;
      fold.children.push(unit);
    }
    this.measure(fold);
    const [one] = fold.children;
    fold.times = fold.children.length;
    fold.label = one.kind === "call" ? commonName(fold.children) : this.describe(one.children) || `%${fold.first} …`;
    const inside = one.kind === "call" ? [one] : one.children.filter((child) => child.kind === "call");
    fold.note = [...new Set(inside.map((call) => call.module))].slice(0, 2).join(", ");
    fold.signature = this.number(`repeat ${one.signature} ${fold.times}`);
    return fold;
  }

  gather(kind, children, parent) {
    const group = new Group(kind, "", parent);
    group.children = children;
    for (const child of children) if (typeof child !== "number") child.parent = group;
    this.measure(group);
    group.signature = this.number(this.wordOf(group));
    return group;
  }

  measure(group) {
    group.count = group.children.reduce((sum, child) => sum + sizeOf(child), 0);
    group.first = group.children.reduce((least, child) => Math.min(least, firstOf(child)), Infinity);
    group.last = group.children.reduce((most, child) => Math.max(most, lastOf(child)), 0);
  }

  // A stretch of a row, by the module in it or by its lines.
  describe(children) {
    const calls = children.filter((child) => typeof child !== "number" && child.kind !== "part");
    if (calls.length && calls.every((child) => child.kind === "example")) {
      return `examples ${calls[0].example}–${calls[calls.length - 1].example}`;
    }
    if (calls.length)
      return calls.length === 1 ? calls[0].label : `${calls[0].label} … ${calls[calls.length - 1].label}`;
    const sites = children
      .filter((child) => typeof child === "number")
      .map((node) => this.run.site(node))
      .filter(Boolean);
    if (!sites.length) return "";
    const [{ name }] = sites;
    if (sites.some((site) => site.name !== name)) return "several files";
    const lines = sites.map((site) => site.line);
    const low = lines.reduce((a, b) => Math.min(a, b));
    const high = lines.reduce((a, b) => Math.max(a, b));
    return low === high ? `${name}:${low}` : `${name}:${low}–${high}`;
  }

  // Rows that are still too long, in parts, and the parts in parts of their own.
  cut(children, parent) {
    if (parent.kind === "repeat") return children;
    let row = children;
    while (row.length > MOST_CHILDREN) {
      const pieces = Math.ceil(row.length / PART);
      const next = [];
      for (let piece = 0; piece < pieces; piece += 1) {
        const from = Math.round((piece * row.length) / pieces);
        const to = Math.round(((piece + 1) * row.length) / pieces);
        const part = this.gather("part", row.slice(from, to), parent);
        part.label = `%${part.first} – %${part.last}`;
        part.note = this.describe(part.children);
        next.push(part);
      }
      row = next;
    }
    return row;
  }
}

// layers.0, layers.1, layers.2 → layers.0–2
function commonName(groups) {
  const [first, last] = [groups[0].label, groups[groups.length - 1].label];
  if (first === last) return first;
  let same = 0;
  while (same < first.length && first[same] === last[same]) same += 1;
  while (same > 0 && /\d/.test(first[same - 1])) same -= 1;
  return `${first}–${last.slice(same)}`;
}
