// The boxes of the graph: module calls inside module calls, examples of a map, and the nodes in them.

class Group {
  constructor(kind, label, parent) {
    this.kind = kind; // root, call, example, repeat, unit, part
    this.label = label;
    this.note = "";
    this.parent = parent;
    this.children = []; // numbers are nodes
    this.first = Infinity;
    this.last = 0;
    this.count = 0;
    this.open = false;
    this.example = -1;
    this.signature = 0;
    // Of a repeat: which of its instances is shown when it is open, or all of them.
    this.instance = 0;
    this.all = false;
    // Of an instance of a repeat: which one it is.
    this.unit = -1;
    this.shown = null;
    this.stamp = -1;
  }
}

const firstOf = (child) => (typeof child === "number" ? child : child.first);
const lastOf = (child) => (typeof child === "number" ? child : child.last);
const sizeOf = (child) => (typeof child === "number" ? 1 : child.count);

class Groups {
  constructor(run) {
    this.run = run;
    this.root = new Group("root", "run", null);
    this.home = new Array(run.count).fill(this.root);
    this.placeNodes(this.makeCalls());
    this.finish();
    new Folding(run, this).fold();
    this.settle();
  }

  // One group for each call of a module; an entry that points nowhere hangs on the root.
  makeCalls() {
    const run = this.run;
    const raw = listOf(run.raw.calls);
    const groups = raw.map((call, index) => {
      const module = run.callModule(index) || { path: "", kind: "module" };
      const group = new Group("call", module.path || module.kind || "module", this.root);
      group.path = module.path;
      group.module = module.kind;
      group.number = Array.isArray(call) && Number.isInteger(call[2]) ? call[2] : 0;
      group.note = module.path ? module.kind : "";
      group.call = index;
      return group;
    });
    this.parents = raw.map((call, index) => {
      const parent = Array.isArray(call) ? call[1] : -1;
      return Number.isInteger(parent) && parent >= 0 && parent < index ? parent : -1;
    });
    return groups;
  }

  // The example that all ops of a call belong to, if it is one; -1 for several or none.
  examplesOfCalls(calls) {
    const run = this.run;
    const found = new Array(calls.length).fill(undefined);
    const meet = (index, example) => {
      if (found[index] === undefined) found[index] = example;
      else if (found[index] !== example) found[index] = -1;
    };
    const distinct = new Set();
    for (let node = 0; node < run.count; node += 1) {
      if (run.kind(node) !== OP) continue;
      const example = run.cell("example", node, -1);
      if (example >= 0) distinct.add(example);
      const call = run.cell("call", node, -1);
      if (calls[call]) meet(call, example);
    }
    for (let index = calls.length - 1; index >= 0; index -= 1) {
      if (found[index] !== undefined && this.parents[index] >= 0) meet(this.parents[index], found[index]);
    }
    this.severalExamples = distinct.size > 1;
    // A box around one op says nothing.
    this.exampleSizes = new Map();
    for (let node = 0; node < run.count; node += 1) {
      const example = run.cell("example", node, -1);
      this.exampleSizes.set(example, (this.exampleSizes.get(example) || 0) + 1);
    }
    calls.forEach((group, index) => (group.example = found[index] === undefined ? -1 : found[index]));
  }

  // Where something of an example goes inside a group: the box of that example, unless the group is all of it.
  holder(group, example) {
    if (!this.severalExamples || example < 0 || group.example === example || this.exampleSizes.get(example) < 2)
      return group;
    group.examples = group.examples || new Map();
    let box = group.examples.get(example);
    if (!box) {
      box = new Group("example", `example ${example}`, group);
      box.example = example;
      group.examples.set(example, box);
      group.children.push(box);
    }
    return box;
  }

  placeNodes(calls) {
    const run = this.run;
    this.examplesOfCalls(calls);
    calls.forEach((group, index) => {
      const parent = this.parents[index] >= 0 ? calls[this.parents[index]] : this.root;
      group.parent = this.holder(parent, group.example);
      group.parent.children.push(group);
    });
    const leaves = [];
    for (let node = 0; node < run.count; node += 1) {
      if (run.primary[node] !== node) {
        this.home[node] = this.home[run.primary[node]];
        continue;
      }
      if (run.kind(node) === LEAF) {
        leaves.push(node);
        continue;
      }
      const group = calls[run.cell("call", node, -1)] || this.root;
      this.put(node, this.holder(group, run.cell("example", node, -1)));
    }
    // A parameter stands in the innermost box around all that use it: beside a cell that runs 37 times, not in it.
    for (const node of leaves) {
      const users = run.users(node).map((user) => this.home[user]);
      this.put(node, users.length ? this.common(users) : calls[run.cell("call", node, -1)] || this.root);
    }
  }

  put(node, group) {
    this.home[node] = group;
    group.children.push(node);
  }

  depth(group) {
    let depth = 0;
    for (let above = group; above.parent; above = above.parent) depth += 1;
    return depth;
  }

  common(groups) {
    let [best] = groups;
    let depth = this.depth(best);
    for (const other of new Set(groups)) {
      let [group, level] = [other, this.depth(other)];
      while (group !== best) {
        if (level >= depth) [group, level] = [group.parent, level - 1];
        else [best, depth] = [best.parent, depth - 1];
      }
    }
    return best;
  }

  // Every group, parents before children. No recursion: calls may nest a thousand deep.
  *walk() {
    const waiting = [this.root];
    while (waiting.length) {
      const group = waiting.pop();
      yield group;
      for (const child of group.children) if (typeof child !== "number") waiting.push(child);
    }
  }

  // Counts and order, from the innermost out; calls in which nothing ran go.
  finish() {
    for (const group of [...this.walk()].reverse()) {
      group.children = group.children.filter((child) => sizeOf(child) > 0);
      group.children.sort((a, b) => this.rank(a) - this.rank(b));
      group.count = 0;
      group.first = Infinity;
      for (const child of group.children) {
        group.count += sizeOf(child);
        group.first = Math.min(group.first, firstOf(child));
        group.last = Math.max(group.last, lastOf(child));
      }
    }
  }

  // In order of the run, with what is shared in front: a weight first used in a loop is no part of its first round.
  rank(child) {
    const run = this.run;
    const shared = typeof child === "number" && run.kind(child) !== OP && run.useCount(child) > 1;
    return shared ? child - run.count : firstOf(child);
  }

  // After folding: who stands where, and when each group runs.
  settle() {
    const run = this.run;
    const groups = [...this.walk()];
    for (const group of groups) {
      group.forward = [Infinity, 0];
      group.backward = [Infinity, 0];
      group.marks = { decisions: 0, bad: 0 };
      for (const child of group.children) {
        if (typeof child === "number") this.home[child] = group;
        else child.parent = group;
      }
    }
    const widen = (range, low, high) => {
      if (low) range[0] = Math.min(range[0], low);
      if (high) range[1] = Math.max(range[1], high);
    };
    for (let node = 0; node < run.count; node += 1) {
      const group = (this.home[node] = this.home[run.primary[node]]);
      widen(group.forward, run.forwardAt[node], run.forwardAt[node]);
      widen(group.backward, run.backwardAt[node], run.backwardAt[node]);
      if (run.decisions.has(node)) group.marks.decisions += 1;
      if (run.isBad(node, "stats") || run.isBad(node, "grad")) group.marks.bad += 1;
    }
    for (const group of groups.reverse()) {
      if (!group.parent) continue;
      const finite = (time) => (Number.isFinite(time) ? time : 0);
      widen(group.parent.forward, finite(group.forward[0]), group.forward[1]);
      widen(group.parent.backward, finite(group.backward[0]), group.backward[1]);
      group.parent.marks.decisions += group.marks.decisions;
      group.parent.marks.bad += group.marks.bad;
    }
  }

  // The groups around a node, the outermost first, without the root.
  chain(node) {
    const found = [];
    for (let group = this.home[node]; group && group.parent; group = group.parent) found.push(group);
    return found.reverse();
  }

  *nodesIn(group) {
    const waiting = [...group.children].reverse();
    while (waiting.length) {
      const child = waiting.pop();
      if (typeof child === "number") yield child;
      else for (let i = child.children.length - 1; i >= 0; i -= 1) waiting.push(child.children[i]);
    }
  }

  reveal(node) {
    for (const group of this.chain(node)) this.show(group);
  }

  // Open a group, and where it is one of many alike, turn its fold to it.
  show(group) {
    group.open = true;
    if (group.unit >= 0 && group.parent) group.parent.instance = group.unit;
  }

  closeAll() {
    for (const group of this.walk()) group.open = group === this.root;
  }

  // How a run opens: a small one whole, a large one as far as it stays easy to look at.
  openAtFirst(budget) {
    this.closeAll();
    if (this.run.count <= budget) {
      for (const group of this.walk()) group.open = true;
      return;
    }
    let room = budget - this.root.children.length;
    let level = [this.root];
    while (level.length) {
      const next = level.flatMap((group) => group.children.filter((child) => typeof child !== "number"));
      for (const group of next) {
        if (group.kind === "repeat" || group.children.length > room || !group.parent.open) continue;
        group.open = true;
        room -= group.children.length;
      }
      level = next.filter((group) => group.open);
    }
  }

  // Open every closed box one level, as far as the budget allows; says whether something opened.
  openMore(budget) {
    const closed = [];
    const waiting = [this.root];
    let shown = 0;
    while (waiting.length) {
      const group = waiting.pop();
      const kids = group.kind === "repeat" && !group.all ? [group.children[group.instance]] : group.children;
      for (const child of kids) {
        shown += 1;
        if (typeof child === "number") continue;
        if (child.open) waiting.push(child);
        else closed.push(child);
      }
    }
    closed.sort((a, b) => a.children.length - b.children.length);
    let opened = 0;
    for (const group of closed) {
      const size = group.kind === "repeat" ? group.children[0].children.length + 2 : group.children.length;
      if (shown + size > budget) break;
      group.open = true;
      if (group.kind === "repeat") this.show(group.children[group.instance]);
      shown += size;
      opened += 1;
    }
    return opened > 0;
  }
}
