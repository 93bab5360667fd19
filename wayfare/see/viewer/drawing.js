// The visible graph as SVG. Only what is on the screen or near it is in the page.

const MOST_DRAWN = 1500;
const DETAIL_FROM = 0.3;
class Drawing {
  constructor(app) {
    this.app = app;
    this.svg = byId("graph");
    this.cards = new Cards(app);
    this.camera = new Camera(this.svg, () => this.moved());
    this.world = draw("g", {});
    this.layers = {};
    this.svg.append(this.markers());
    for (const name of ["boxes", "edges", "items", "flags"])
      this.world.append((this.layers[name] = draw("g", { class: name })));
    this.svg.append(this.world);
    this.svg.addEventListener("click", (event) => this.clicked(event));
    this.svg.addEventListener("dblclick", (event) => this.doubleClicked(event));
  }

  markers() {
    const arrow = (name) =>
      draw(
        "marker",
        {
          id: `arrow-${name}`,
          viewBox: "0 0 8 8",
          refX: 7,
          refY: 4,
          markerWidth: 7,
          markerHeight: 7,
          orient: "auto-start-reverse",
          class: `arrow ${name}`,
        },
        draw("path", { d: "M0,0.6 L7.4,4 L0,7.4 z" }),
      );
    return draw("defs", {}, ["plain", "near", "forward", "backward"].map(arrow));
  }

  layOut() {
    this.graph = new VisibleGraph(this.app.run, this.app.groups);
    new Layout(this.graph, (item) => this.cards.measure(item));
    this.drawnWindow = null;
  }

  // Lay out anew after a box has been opened or closed, with that box staying where it is on the screen.
  refresh(anchor) {
    const before = anchor && anchor.shown && anchor.stamp === this.graph.stamp ? anchor.shown : null;
    const at = before ? [before.x + before.width / 2, before.y] : null;
    this.layOut();
    if (at && anchor.stamp === this.graph.stamp) {
      const after = anchor.shown;
      this.camera.x += (at[0] - after.x - after.width / 2) * this.camera.scale;
      this.camera.y += (at[1] - after.y) * this.camera.scale;
    }
    this.moved();
  }

  fit(smallest) {
    this.camera.fit(this.graph.root, smallest);
  }

  moved() {
    this.world.setAttribute("transform", this.camera.transform());
    const window = this.camera.window(0);
    const drawn = this.drawnWindow;
    const inside =
      drawn &&
      drawn.graph === this.graph &&
      window.left >= drawn.left &&
      window.top >= drawn.top &&
      window.right <= drawn.right &&
      window.bottom <= drawn.bottom &&
      drawn.detail === this.detail() &&
      window.right - window.left > (drawn.right - drawn.left) / 8;
    if (!inside) this.drawWindow();
  }

  detail() {
    return this.camera.scale >= DETAIL_FROM;
  }

  drawWindow() {
    const window = this.camera.window(0.6);
    this.drawnWindow = { ...window, graph: this.graph, detail: this.detail() };
    const meets = (box) =>
      box.x <= window.right &&
      box.x + box.width >= window.left &&
      box.y <= window.bottom &&
      box.y + box.height >= window.top;
    const items = this.graph.items.filter((item) => item.parent && meets(item)).slice(0, MOST_DRAWN);
    const edges = this.graph.edges
      .filter(
        (edge) =>
          edge.left <= window.right &&
          edge.right >= window.left &&
          edge.top <= window.bottom &&
          edge.bottom >= window.top,
      )
      .slice(0, 2 * MOST_DRAWN);
    this.drawnItems = new Map();
    this.drawnEdges = edges.map((edge) => ({ edge, element: draw("path", { d: pathThrough(edge.points) }) }));
    this.layers.edges.replaceChildren(...this.drawnEdges.map(({ element }) => element));
    // An open box is two elements: its ground under the edges, its name and buttons above them.
    const grounds = [];
    const heads = [];
    const detail = this.detail();
    const cards = [];
    for (const item of items) {
      const element = item.open ? this.cards.openBox(item, detail) : this.cards.card(item, detail);
      element.viewItem = item;
      this.drawnItems.set(item, element);
      (item.open ? heads : cards).push(element);
      if (item.open) grounds.push((element.ground = this.cards.ground(item)));
    }
    this.layers.boxes.replaceChildren(...grounds);
    this.layers.items.replaceChildren(...heads, ...cards);
    this.paint();
  }

  // Classes only: what is selected, found, running. Called at every step, so nothing is made anew.
  paint() {
    const { app } = this;
    const now = app.steps.current();
    this.svg.classList.toggle("stepping", Boolean(now));
    const current = now && now.node >= 0 ? this.graph.itemOf(now.node) : null;
    const chosen = app.selectedItem();
    for (const [item, element] of this.drawnItems) {
      const names = [item.open ? "open-box" : "item", element.dataset.kind, ...app.classesOf(item)];
      if (item === chosen) names.push("chosen");
      if (item === current) names.push("now", now.phase);
      element.setAttribute("class", names.join(" "));
      if (element.ground) element.ground.setAttribute("class", ["ground", ...names.slice(1)].join(" "));
    }
    const running = current && now ? this.runningEdges(now) : new Set();
    for (const { edge, element } of this.drawnEdges) {
      const near = chosen && chosen !== current && (edge.from === chosen || edge.to === chosen);
      const runs = running.has(edge);
      const late = app.isFuture(edge.from) || app.isFuture(edge.to);
      const kind = runs ? now.phase : near ? "near" : "plain";
      const faint = edge.from.part || edge.to.part || edge.side ? " faint" : "";
      element.setAttribute("class", `edge ${kind}${late ? " future" : ""}${faint}`);
      const backward = runs && now.phase === "backward";
      element.setAttribute("marker-end", backward ? "none" : `url(#arrow-${runs ? "forward" : kind})`);
      if (backward) element.setAttribute("marker-start", "url(#arrow-backward)");
      else element.removeAttribute("marker-start");
    }
    this.layers.flags.replaceChildren(...(current ? [this.flag(current, now)] : []));
  }

  // Forward runs along the edges into a node; backward sends its gradient up the same edges.
  runningEdges(now) {
    const to = this.graph.itemOf(now.node);
    const from = new Set(this.app.run.inputs[now.node].map((input) => this.graph.itemOf(input)));
    return new Set(this.graph.edges.filter((edge) => edge.to === to && from.has(edge.from)));
  }

  flag(item, now) {
    const sign = { forward: "▼", backward: "▲", decision: "◆" }[now.phase];
    const y = item.y + (item.open ? 16 : item.height / 2);
    return draw(
      "g",
      { class: `flag ${now.phase}`, transform: `translate(${item.x.toFixed(1)},${y.toFixed(1)})` },
      draw("circle", { r: 10 }),
      draw("text", { y: 4 }, sign),
    );
  }

  itemAt(event) {
    const element = event.target instanceof Element ? event.target.closest("[data-key]") : null;
    return element ? element.viewItem : null;
  }

  clicked(event) {
    if (this.camera.dragged) return;
    const item = this.itemAt(event);
    const acting = event.target.closest("[data-act]");
    const act = acting ? acting.dataset.act : "";
    if (!item) this.app.select(null);
    else if (act === "toggle") this.app.toggle(item.group);
    else if (act === "earlier" || act === "later") this.app.turn(item.group, act === "later" ? 1 : -1);
    else if (item.part) this.app.turn(item.group, item.part.which === "later" ? 1 : -1);
    else this.app.select(item.node >= 0 ? item.node : item.group);
  }

  doubleClicked(event) {
    const item = this.itemAt(event);
    if (item && item.group && !item.part && !event.target.closest("[data-act]")) this.app.toggle(item.group);
  }
}
