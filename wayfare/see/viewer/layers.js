// One box laid out in layers, top to bottom: which layer, in which order, at which x. Vertices are the children of the
// box, the ports where edges enter and leave it, and the bends of edges that pass a layer.

const LAYER_GAP = 34;
const PORT_GAP = 16;
const SIDE_GAP = 22;
const BEND_GAP = 12;
const MOST_BENDS = 6000;

class Layering {
  // children: [{width, height}]; entries and exits: how many ports; edges: [from, to, and how far from the middle of
  // each], numbering children, then entries, then exits.
  constructor(children, entries, exits, edges) {
    this.own = children.length;
    this.vertices = children.map((child) => ({ width: child.width, height: child.height, bend: false }));
    for (let port = 0; port < entries + exits; port += 1) this.vertices.push({ width: 2, height: 0, bend: true });
    this.entries = entries;
    this.exits = exits;
    this.edges = edges.map(([from, to, leaves, enters]) => ({ from, to, leaves, enters, back: false, bends: [] }));
    this.assignLayers();
    this.bendEdges();
    this.order();
    this.placeAcross();
    this.placeDown();
  }

  isEntry(vertex) {
    return vertex >= this.own && vertex < this.own + this.entries;
  }

  isExit(vertex) {
    return vertex >= this.own + this.entries && vertex < this.own + this.entries + this.exits;
  }

  // The longest way from a source; where boxes wait for each other in a circle, the earliest goes first.
  assignLayers() {
    const size = this.vertices.length;
    const out = Array.from({ length: size }, () => []);
    const waiting = new Int32Array(size);
    for (const edge of this.edges) {
      out[edge.from].push(edge);
      waiting[edge.to] += 1;
    }
    const layer = new Int32Array(size);
    const done = new Uint8Array(size);
    const free = [];
    for (let vertex = size - 1; vertex >= 0; vertex -= 1) if (!waiting[vertex]) free.push(vertex);
    let remaining = size;
    let oldest = 0;
    while (remaining) {
      if (!free.length) {
        while (done[oldest]) oldest += 1;
        free.push(oldest);
      }
      const vertex = free.pop();
      if (done[vertex]) continue;
      done[vertex] = 1;
      remaining -= 1;
      for (const edge of out[vertex]) {
        if (done[edge.to]) {
          edge.back = true;
          continue;
        }
        layer[edge.to] = Math.max(layer[edge.to], layer[vertex] + 1);
        waiting[edge.to] -= 1;
        if (!waiting[edge.to]) free.push(edge.to);
      }
    }
    this.tighten(layer, out);
    this.vertices.forEach((vertex, index) => (vertex.layer = layer[index]));
  }

  tighten(layer, out) {
    const size = this.vertices.length;
    const lowest = this.entries ? 1 : 0;
    const hasInput = new Uint8Array(size);
    for (const edge of this.edges) if (!edge.back) hasInput[edge.to] = 1;
    if (this.entries) {
      // Entries have the first layer to themselves.
      const least = layer.reduce((low, value, index) => (index < this.own ? Math.min(low, value) : low), Infinity);
      if (least === 0) for (let vertex = 0; vertex < size; vertex += 1) if (!this.isEntry(vertex)) layer[vertex] += 1;
    }
    // A parameter stands right above what uses it first.
    for (let vertex = 0; vertex < this.own; vertex += 1) {
      if (hasInput[vertex]) continue;
      let next = Infinity;
      for (const edge of out[vertex])
        if (!edge.back) next = Math.min(next, this.isExit(edge.to) ? Infinity : layer[edge.to]);
      if (Number.isFinite(next)) layer[vertex] = Math.max(lowest, next - 1);
    }
    let last = 0;
    for (let vertex = 0; vertex < size; vertex += 1) if (!this.isExit(vertex)) last = Math.max(last, layer[vertex]);
    for (let vertex = 0; vertex < size; vertex += 1) if (this.isExit(vertex)) layer[vertex] = last + 1;
  }

  // An edge over several layers bends in each; edges of one source share their bends.
  bendEdges() {
    const chains = new Map();
    let bends = 0;
    this.links = [];
    const byLength = [...this.edges].sort((a, b) => this.span(a) - this.span(b));
    for (const edge of byLength) {
      const [top, bottom] = edge.back ? [edge.to, edge.from] : [edge.from, edge.to];
      const [upper, lower] = edge.back ? [edge.enters, edge.leaves] : [edge.leaves, edge.enters];
      const [high, low] = [this.vertices[top].layer, this.vertices[bottom].layer];
      const key = edge.back ? `back ${top} ${bottom}` : top;
      if (!chains.has(key)) chains.set(key, []);
      const chain = chains.get(key);
      if (bends + (low - high) > MOST_BENDS) continue;
      for (let layer = high + 1 + chain.length; layer < low; layer += 1) {
        const bend = this.vertices.length;
        this.vertices.push({ width: 2, height: 0, bend: true, layer, entering: this.isEntry(top) });
        this.links.push([chain.length ? chain[chain.length - 1] : top, bend, chain.length ? 0 : upper, 0]);
        chain.push(bend);
        bends += 1;
      }
      edge.bends = chain.slice(0, Math.max(0, low - high - 1));
      const before = edge.bends.length ? edge.bends[edge.bends.length - 1] : top;
      if (low > high) this.links.push([before, bottom, edge.bends.length ? 0 : upper, lower]);
    }
  }

  span(edge) {
    return Math.abs(this.vertices[edge.to].layer - this.vertices[edge.from].layer);
  }

  // Fewer crossings: each layer by the middle of its neighbours, up and down, the best order kept.
  order() {
    const count = this.vertices.reduce((most, vertex) => Math.max(most, vertex.layer), 0) + 1;
    this.layers = Array.from({ length: count }, () => []);
    this.vertices.forEach((vertex, index) => this.layers[vertex.layer].push(index));
    // What comes from outside passes on the left: the first input of most ops is the data, then come the parameters.
    const late = (index) => (this.vertices[index].entering ? 0 : 1);
    for (const row of this.layers) row.sort((a, b) => late(a) - late(b));
    this.above = this.vertices.map(() => []);
    this.below = this.vertices.map(() => []);
    // Each neighbour with how much further right it is when the edge between runs straight down.
    for (const [from, to, leaves, enters] of this.links) {
      this.below[from].push({ vertex: to, shift: leaves - enters });
      this.above[to].push({ vertex: from, shift: enters - leaves });
    }
    this.rank();
    let best = this.layers.map((row) => row.slice());
    let fewest = this.crossings();
    for (let sweep = 0; sweep < 8 && fewest > 0; sweep += 1) {
      const down = sweep % 2 === 0;
      const rows = down ? this.layers : [...this.layers].reverse();
      for (const row of rows) {
        const neighbours = down ? this.above : this.below;
        const middle = new Map(row.map((vertex, index) => [vertex, this.middle(neighbours[vertex], index)]));
        row.sort((a, b) => middle.get(a) - middle.get(b));
        row.forEach((vertex, index) => (this.vertices[vertex].rank = index));
      }
      const now = this.crossings();
      if (now < fewest) {
        fewest = now;
        best = this.layers.map((row) => row.slice());
      }
    }
    this.layers = best;
    this.rank();
  }

  rank() {
    for (const row of this.layers) row.forEach((vertex, index) => (this.vertices[vertex].rank = index));
  }

  middle(neighbours, otherwise) {
    if (!neighbours.length) return otherwise;
    return neighbours.reduce((sum, { vertex }) => sum + this.vertices[vertex].rank, 0) / neighbours.length;
  }

  // Pairs of links between two layers that cross, counted with a tree of sums.
  crossings() {
    let total = 0;
    for (let index = 1; index < this.layers.length; index += 1) {
      const size = this.layers[index].length;
      const sums = new Int32Array(size + 1);
      let seen = 0;
      for (const upper of this.layers[index - 1]) {
        const ranks = this.below[upper].map(({ vertex }) => this.vertices[vertex].rank);
        for (const rank of ranks) {
          let before = 0;
          for (let at = rank + 1; at > 0; at -= at & -at) before += sums[at];
          total += seen - before;
        }
        for (const rank of ranks) for (let at = rank + 1; at <= size; at += at & -at) sums[at] += 1;
        seen += ranks.length;
      }
    }
    return total;
  }

  gap(left, right) {
    const [a, b] = [this.vertices[left], this.vertices[right]];
    return (a.width + b.width) / 2 + (a.bend || b.bend ? BEND_GAP : SIDE_GAP);
  }

  placeAcross() {
    for (const row of this.layers) {
      let x = 0;
      row.forEach((vertex, index) => {
        if (index) x += this.gap(row[index - 1], vertex);
        this.vertices[vertex].x = x;
      });
      row.forEach((vertex) => (this.vertices[vertex].x -= x / 2));
    }
    const sweeps = this.vertices.length > 1500 ? 8 : 32;
    for (let sweep = 0; sweep < sweeps; sweep += 1) {
      const down = sweep % 2 === 0;
      const rows = down ? this.layers : [...this.layers].reverse();
      const last = sweep >= sweeps - 2;
      for (const row of rows) this.settleRow(row, last ? null : down ? this.above : this.below);
    }
  }

  // Each vertex as near to its neighbours as the row allows: least squares with distances kept (pooled neighbours).
  settleRow(row, neighbours) {
    const blocks = [];
    let shift = 0;
    row.forEach((vertex, index) => {
      if (index) shift += this.gap(row[index - 1], vertex);
      const { wish, weight } = this.wish(vertex, neighbours);
      blocks.push({ sum: (wish - shift) * weight, weight, size: 1 });
      while (blocks.length > 1) {
        const [before, after] = blocks.slice(-2);
        if (before.sum / before.weight <= after.sum / after.weight) break;
        blocks.splice(-2, 2, {
          sum: before.sum + after.sum,
          weight: before.weight + after.weight,
          size: before.size + after.size,
        });
      }
    });
    let index = 0;
    shift = 0;
    for (const block of blocks) {
      for (let step = 0; step < block.size; step += 1, index += 1) {
        if (index) shift += this.gap(row[index - 1], row[index]);
        this.vertices[row[index]].x = block.sum / block.weight + shift;
      }
    }
  }

  wish(vertex, neighbours) {
    const own = this.vertices[vertex];
    const near = neighbours ? neighbours[vertex] : this.above[vertex].concat(this.below[vertex]);
    let [sum, weight] = [0, 0];
    for (const { vertex: index, shift } of near) {
      const other = this.vertices[index];
      const pull = own.bend && other.bend ? 6 : own.bend || other.bend ? 2 : 1;
      sum += (other.x - shift) * pull;
      weight += pull;
    }
    return weight ? { wish: sum / weight, weight } : { wish: own.x, weight: 0.05 };
  }

  placeDown() {
    let y = 0;
    this.layerTop = [];
    this.layerBottom = [];
    this.layers.forEach((row, index) => {
      const height = row.reduce((most, vertex) => Math.max(most, this.vertices[vertex].height), 0);
      this.layerTop[index] = y;
      this.layerBottom[index] = y + height;
      for (const vertex of row) this.vertices[vertex].y = y + (height - this.vertices[vertex].height) / 2;
      const beside = (index === 0 && this.entries) || (index === this.layers.length - 2 && this.exits);
      y += height + (beside ? PORT_GAP : LAYER_GAP);
    });
  }

  // The bends of an edge as points: where it passes a layer it goes straight down beside the boxes.
  route(edge) {
    const points = [];
    for (const bend of edge.bends) {
      const { x, layer } = this.vertices[bend];
      points.push([x, this.layerTop[layer]]);
      if (this.layerBottom[layer] > this.layerTop[layer]) points.push([x, this.layerBottom[layer]]);
    }
    return edge.back ? points.reverse() : points;
  }
}
