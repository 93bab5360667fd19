// What of the graph is to be seen: the items (nodes, closed boxes, open boxes) and the edges between them.

class Item {
  constructor(id, parent, node, group) {
    this.id = id;
    this.parent = parent;
    this.depth = parent ? parent.depth + 1 : 0;
    this.node = node;
    this.group = group;
    this.open = false;
    this.children = [];
    this.part = null; // of an open repeat: the instances before or after the one shown
    this.x = this.y = this.width = this.height = 0;
  }

  get key() {
    if (this.node >= 0) return `n${this.node}`;
    return `g${this.group.first}.${this.group.kind}.${this.group.count}${this.part ? this.part.which : ""}`;
  }
}

class VisibleGraph {
  static stamps = 0;

  constructor(run, groups) {
    this.run = run;
    this.groups = groups;
    this.stamp = VisibleGraph.stamps += 1;
    this.items = [];
    this.itemOfNode = new Array(run.count);
    this.root = this.add(null, -1, groups.root);
    this.root.open = true;
    this.spread();
    this.findEdges();
  }

  add(parent, node, group) {
    const item = new Item(this.items.length, parent, node, group);
    this.items.push(item);
    if (parent) parent.children.push(item);
    return item;
  }

  spread() {
    const waiting = [this.root];
    while (waiting.length) {
      const item = waiting.pop();
      const group = item.group;
      group.stamp = this.stamp;
      group.shown = item;
      if (!item.open) continue;
      for (const child of this.childrenOf(group)) {
        if (child.part) this.add(item, -1, group).part = child.part;
        else if (typeof child === "number") this.itemOfNode[child] = this.add(item, child, null);
        else {
          const below = this.add(item, -1, child);
          below.open = child.open;
          waiting.push(below);
        }
      }
    }
  }

  // A repeat shows one of its instances, with the ones before and after it as two closed boxes.
  childrenOf(group) {
    if (group.kind !== "repeat" || group.all) return group.children;
    const { instance, children } = group;
    const shown = [children[instance]];
    if (instance > 0) shown.unshift({ part: { which: "earlier", times: instance } });
    if (instance < children.length - 1) shown.push({ part: { which: "later", times: children.length - 1 - instance } });
    return shown;
  }

  // The item that stands for a group: its own, or the closed box around it.
  itemOfGroup(group) {
    const hidden = [];
    let above = group;
    while (above.stamp !== this.stamp) {
      hidden.push(above);
      above = above.parent;
    }
    let item = above.shown;
    for (const below of hidden.reverse()) {
      if (item.open && item.group === below.parent && item.group.kind === "repeat") {
        const which = below.unit < item.group.instance ? "earlier" : "later";
        item = item.children.find((child) => child.part && child.part.which === which) || item;
      }
      below.stamp = this.stamp;
      below.shown = item;
    }
    return group.shown;
  }

  itemOf(node) {
    const drawn = this.run.primary[node];
    return this.itemOfNode[drawn] || (this.itemOfNode[drawn] = this.itemOfGroup(this.groups.home[drawn]));
  }

  findEdges() {
    const run = this.run;
    const size = this.items.length;
    const found = new Map();
    for (let node = 0; node < run.count; node += 1) {
      const inputs = run.inputs[node];
      if (!inputs.length) continue;
      const to = this.itemOf(node);
      for (const input of inputs) {
        const from = this.itemOf(input);
        if (from === to) continue;
        const key = from.id * size + to.id;
        const edge = found.get(key);
        if (edge) edge.count += 1;
        else found.set(key, { from, to, count: 1, points: [], side: from.node >= 0 && run.kind(from.node) === LEAF });
      }
    }
    this.edges = [...found.values()];
  }
}
