// The whole visible graph laid out: boxes from the innermost out, then every edge stitched together from its stretches
// through the boxes it leaves and enters.

const PADDING = 16;
const HEADER = 32;

class Layout {
  constructor(graph, measure) {
    this.graph = graph;
    for (const item of graph.items) if (!item.open) [item.width, item.height] = measure(item);
    this.measure = measure;
    this.containers = new Map();
    for (const item of graph.items) {
      if (item.open) this.containers.set(item, { item, edges: new Map(), entries: new Map(), exits: new Map() });
    }
    for (const edge of graph.edges) this.thread(edge);
    for (const item of [...graph.items].reverse()) if (item.open) this.arrange(this.containers.get(item));
    this.place();
    for (const edge of graph.edges) this.stitch(edge);
    this.spreadArrivals();
    for (const edge of graph.edges) this.bound(edge);
  }

  // Edges that meet at one item arrive side by side, in the order in which they come.
  spreadArrivals() {
    const arrivals = new Map();
    for (const edge of this.graph.edges) {
      if (!arrivals.has(edge.to)) arrivals.set(edge.to, []);
      arrivals.get(edge.to).push(edge);
    }
    for (const [item, edges] of arrivals) {
      if (edges.length < 2) continue;
      const from = (edge) => edge.points[edge.points.length - 2][0];
      edges.sort((a, b) => from(a) - from(b));
      const step = Math.min(14, (item.width - 24) / (edges.length - 1));
      edges.forEach(
        (edge, index) => (edge.points[edge.points.length - 1][0] += (index - (edges.length - 1) / 2) * step),
      );
    }
  }

  // The stretches of an edge: out of the boxes around its start, across, into the boxes around its end.
  thread(edge) {
    let [from, to] = [edge.from, edge.to];
    // The ports met last on either side: where the edge leaves and enters the open boxes that `from` and `to` are.
    let [left, entered] = [null, null];
    edge.outward = [];
    edge.inward = [];
    while (from.parent !== to.parent) {
      if (from.depth >= to.depth) {
        const box = this.containers.get(from.parent);
        if (!box.exits.has(from)) box.exits.set(from, { child: from, inside: new Set() });
        const port = box.exits.get(from);
        port.inside.add(left);
        edge.outward.push({ box, port });
        left = port;
        from = from.parent;
      } else {
        const box = this.containers.get(to.parent);
        if (!box.entries.has(edge.from)) box.entries.set(edge.from, { children: new Map() });
        const port = box.entries.get(edge.from);
        port.children.set(to, (port.children.get(to) || new Set()).add(entered));
        edge.inward.push({ box, port, child: to });
        entered = port;
        to = to.parent;
      }
    }
    const box = this.containers.get(from.parent);
    const size = this.graph.items.length;
    const key = from.id * size + to.id;
    if (!box.edges.has(key)) box.edges.set(key, { from, to, leaves: new Set(), enters: new Set() });
    const link = box.edges.get(key);
    link.leaves.add(left);
    link.enters.add(entered);
    edge.across = { box, link };
  }

  // How far from the middle of an item its edges through these ports are; a card has no ports, and none is off.
  offset(item, ports) {
    const places = [...ports].filter(Boolean).map((port) => port.x);
    return places.length ? places.reduce((sum, x) => sum + x, 0) / places.length - item.width / 2 : 0;
  }

  arrange(box) {
    const { item } = box;
    const children = item.children;
    const index = new Map(children.map((child, number) => [child, number]));
    const entries = [...box.entries.values()];
    const exits = [...box.exits.values()];
    const pairs = [];
    const owners = [];
    for (const link of box.edges.values()) {
      const offsets = [this.offset(link.from, link.leaves), this.offset(link.to, link.enters)];
      pairs.push([index.get(link.from), index.get(link.to), ...offsets]);
      owners.push((route) => (link.route = route));
    }
    entries.forEach((port, number) => {
      port.routes = new Map();
      for (const [child, inside] of port.children) {
        pairs.push([children.length + number, index.get(child), 0, this.offset(child, inside)]);
        owners.push((route) => port.routes.set(child, route));
      }
    });
    exits.forEach((port, number) => {
      const offset = this.offset(port.child, port.inside);
      pairs.push([index.get(port.child), children.length + entries.length + number, offset, 0]);
      owners.push((route) => (port.route = route));
    });
    const layering = new Layering(children, entries.length, exits.length, pairs);
    this.frame(box, layering, children);
    layering.edges.forEach((edge, number) => owners[number](this.shifted(layering.route(edge), box)));
    children.forEach((child, number) => {
      const vertex = layering.vertices[number];
      child.x = vertex.x - child.width / 2 + box.dx;
      child.y = vertex.y + box.dy;
    });
    entries.forEach((port, number) => (port.x = layering.vertices[children.length + number].x + box.dx));
    exits.forEach((port, number) => (port.x = layering.vertices[children.length + entries.length + number].x + box.dx));
  }

  // The size of a box around what it holds, and how far its content moves in it.
  frame(box, layering, children) {
    const isRoot = !box.item.parent;
    let [left, right, bottom] = [Infinity, -Infinity, 0];
    for (const vertex of layering.vertices) {
      left = Math.min(left, vertex.x - vertex.width / 2);
      right = Math.max(right, vertex.x + vertex.width / 2);
      bottom = Math.max(bottom, vertex.y + vertex.height);
    }
    if (!children.length) [left, right] = [0, 0];
    const [least] = isRoot ? [0] : this.measure(box.item);
    const width = Math.max(right - left + 2 * PADDING, least + 40);
    box.dx = (width - (right - left)) / 2 - left;
    box.dy = isRoot ? PADDING : HEADER + (box.entries.size ? 0 : 8);
    box.item.width = width;
    box.item.height = bottom + box.dy + (box.exits.size ? 0 : PADDING);
  }

  shifted(points, box) {
    return points.map(([x, y]) => [x + box.dx, y + box.dy]);
  }

  // From positions inside a box to positions on the sheet; parents stand before children in the list.
  place() {
    for (const item of this.graph.items) {
      if (!item.parent) continue;
      item.x += item.parent.x;
      item.y += item.parent.y;
    }
  }

  stitch(edge) {
    const { from, to } = edge;
    const points = [[from.x + from.width / 2, from.y + from.height]];
    const add = (box, route) => {
      for (const [x, y] of route) points.push([x + box.item.x, y + box.item.y]);
    };
    for (const { box, port } of edge.outward) {
      add(box, port.route);
      points.push([box.item.x + port.x, box.item.y + box.item.height]);
    }
    add(edge.across.box, edge.across.link.route);
    for (const { box, port, child } of [...edge.inward].reverse()) {
      points.push([box.item.x + port.x, box.item.y]);
      add(box, port.routes.get(child));
    }
    points.push([to.x + to.width / 2, to.y]);
    edge.points = points;
  }

  bound(edge) {
    edge.left = edge.top = Infinity;
    edge.right = edge.bottom = -Infinity;
    for (const [x, y] of edge.points) {
      edge.left = Math.min(edge.left, x);
      edge.right = Math.max(edge.right, x);
      edge.top = Math.min(edge.top, y);
      edge.bottom = Math.max(edge.bottom, y);
    }
  }
}

function pathThrough(points) {
  const at = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;
  let text = `M${at(...points[0])}`;
  for (let index = 1; index < points.length; index += 1) {
    const [x0, y0] = points[index - 1];
    const [x1, y1] = points[index];
    const half = y1 > y0 ? (y1 - y0) / 2 : 30;
    text += Math.abs(x1 - x0) < 0.5 ? `L${at(x1, y1)}` : `C${at(x0, y0 + half)} ${at(x1, y1 - half)} ${at(x1, y1)}`;
  }
  return text;
}
