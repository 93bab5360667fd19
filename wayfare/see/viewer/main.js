// The page as a whole: what is selected, which tab is open, what keys do.

const AT_FIRST = 60;
const MOST_OPENED = 700;
// A graph that would have to be smaller than this to be seen whole shows its beginning.
const READABLE = 0.72;

class App {
  constructor(run) {
    this.run = run;
    this.selection = null;
    this.lit = new Set();
    this.theme();
    this.head();
    this.groups = new Groups(run);
    this.groups.openAtFirst(AT_FIRST);
    this.plans = Plans.has(run) ? new Plans(this) : null;
    this.diff = Difference.has(run) ? new Difference(this) : null;
    this.batching = Batching.has(run) ? new Batching(this) : null;
    this.details = new Details(this);
    this.steps = new Steps(this);
    this.drawing = new Drawing(this);
    this.timeline = Timeline.has(run) ? new Timeline(this) : null;
    this.source = Source.has(run) ? new Source(this) : null;
    this.tabs();
    this.legend();
    this.drawing.layOut();
    this.drawing.fit(READABLE);
    this.search = new Search(this);
    this.details.show(null);
    this.steps.go(0);
    this.listen();
  }

  head() {
    const { run } = this;
    const title = String(run.raw.title || "A run");
    byId("title").textContent = title;
    const ended = run.raw.ended && typeof run.raw.ended === "object" ? run.raw.ended : null;
    byId("summary").textContent = `${plural(run.count, "node")} · ${plural(run.events.length, "step")}`;
    const notices = [];
    if (run.unreadable) notices.push(`The document in this page cannot be read: ${run.unreadable}.`);
    else if (run.raw.version !== undefined && run.raw.version !== KNOWN_VERSION) {
      notices.push(
        `This run was written in version ${run.raw.version} of the format and this page knows version ` +
          `${KNOWN_VERSION}: it is shown as far as it goes.`,
      );
    }
    if (ended) {
      const site = run.siteAt(ended.site);
      notices.push(`The run ended with an error${site ? ` at ${site.name}:${site.line}` : ""}: ${ended.error || ""}`);
    }
    if (run.raw.left_out > 0)
      notices.push(`${plural(run.raw.left_out, "node is", "nodes are")} not shown: the recording has a limit.`);
    byId("notice").hidden = !notices.length;
    byId("notice").textContent = notices.join(" ");
  }

  theme() {
    const wanted = storedChoice("wayfare-theme");
    const choose = (theme) => {
      if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
    };
    choose(wanted);
    // A page around this one says which light it has; that is all it can say.
    addEventListener("message", (event) => {
      if (event.source === window.parent && event.data) choose(event.data.theme);
    });
  }

  switchTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    storeChoice("wayfare-theme", root.dataset.theme);
  }

  tabs() {
    const views = {
      timeline: this.timeline,
      batching: this.batching && new Lanes(this),
      plans: this.plans,
      diff: this.diff,
      source: this.source,
    };
    this.views = { graph: null };
    for (const [name, view] of Object.entries(views)) if (view) this.views[name] = view;
    this.tab = "graph";
    byId("tabs").replaceChildren(
      ...Object.keys(this.views).map((name) =>
        button(name[0].toUpperCase() + name.slice(1), () => this.openTab(name), {
          id: `tab-${name}`,
          role: "tab",
          "aria-controls": `panel-${name}`,
          "aria-selected": String(name === "graph"),
          tabindex: name === "graph" ? 0 : -1,
        }),
      ),
    );
    byId("tabs").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.stopPropagation();
      const names = Object.keys(this.views);
      this.openTab(names[(names.indexOf(this.tab) + by + names.length) % names.length]);
      byId(`tab-${this.tab}`).focus();
    });
  }

  openTab(name) {
    if (!(name in this.views)) return;
    this.tab = name;
    for (const other of Object.keys(this.views)) {
      byId(`panel-${other}`).hidden = other !== name;
      byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
      byId(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    }
    if (this.views[name]) this.views[name].show();
  }

  legend() {
    const entries = [
      ["op", "op"],
      ["leaf", "parameter"],
      ["input", "input"],
    ];
    if (this.run.decisions.size) entries.push(["decision", "Python decided here"]);
    byId("legend").replaceChildren(...entries.map(([kind, text]) => make("li", { class: kind }, make("i", {}), text)));
  }

  listen() {
    const press = (id, act) => byId(id).addEventListener("click", act);
    press("theme", () => this.switchTheme());
    press("help", () => this.help());
    press("zoom-in", () => this.drawing.camera.zoom(1.3));
    press("zoom-out", () => this.drawing.camera.zoom(1 / 1.3));
    press("fit", () => this.drawing.fit());
    press("open-more", () => this.openMore());
    press("close-all", () => this.closeAll());
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.drawing.moved()).observe(byId("graph"));
  }

  openMore() {
    if (this.groups.openMore(MOST_OPENED)) {
      this.drawing.refresh();
      this.drawing.fit(0.6);
    }
  }

  closeAll() {
    this.groups.closeAll();
    this.drawing.refresh();
    this.drawing.fit(READABLE);
  }

  // The item on the sheet that stands for the selection, or for the step if nothing is selected.
  selectedItem() {
    const { graph } = this.drawing;
    if (this.selection === null) return null;
    return typeof this.selection === "number" ? graph.itemOf(this.selection) : graph.itemOfGroup(this.selection);
  }

  select(selection) {
    this.selection = selection;
    this.details.show(selection);
    this.drawing.paint();
  }

  goTo(node) {
    this.openTab("graph");
    if (this.drawing.graph.itemOf(node).node !== this.run.primary[node]) {
      this.groups.reveal(node);
      this.drawing.refresh();
    }
    this.select(node);
    this.drawing.camera.show(this.drawing.graph.itemOf(node));
  }

  toggle(group) {
    if (!group || group === this.groups.root) return;
    group.open = !group.open;
    if (group.open && group.kind === "repeat" && !group.all) this.groups.show(group.children[group.instance]);
    this.drawing.refresh(group);
    this.select(group);
  }

  showAll(group) {
    group.all = !(group.all && group.open);
    group.open = true;
    this.drawing.refresh(group);
    this.select(group);
  }

  // To another instance of a repeat.
  turn(group, by) {
    group.all = false;
    group.open = true;
    group.instance = clamp(group.instance + by, 0, group.times - 1);
    group.children[group.instance].open = true;
    this.drawing.refresh(group);
    this.select(group);
  }

  highlight(nodes, label) {
    this.lit = new Set([...nodes].map((node) => this.run.primary[node]));
    this.openTab("graph");
    const [first] = nodes;
    if (first !== undefined) this.goTo(first);
    byId("found").textContent = `${label}: ${plural(nodes.size, "node")}`;
  }

  isFuture(item) {
    const { at } = this.steps;
    if (!at) return false;
    const starts = item.node >= 0 ? this.run.forwardAt[item.node] : item.group.forward[0];
    return Number.isFinite(starts) && starts > at;
  }

  classesOf(item) {
    const names = [];
    const { at } = this.steps;
    const { node, group } = item;
    if (this.isFuture(item)) names.push("future");
    const graded = node >= 0 ? this.run.backwardAt[node] : group.backward[0];
    if (at && graded && graded <= at) names.push("graded");
    if (node >= 0 && this.search && this.search.matched.has(node)) names.push("match");
    if (node >= 0 && this.lit.has(node)) names.push("lit");
    if (this.diff && node >= 0 && this.diff.of(item)) names.push(this.diff.of(item));
    return names;
  }

  // A step was taken: turn open repeats to the instance that runs, bring it into sight, show its line.
  stepped(now) {
    if (!now) {
      this.drawing.paint();
      return;
    }
    if (now.node < 0) {
      this.drawing.paint();
      return;
    }
    let turned = null;
    for (const group of this.groups.chain(now.node)) {
      const fold = group.parent;
      if (!fold.open) break;
      if (fold.kind === "repeat" && !fold.all && group.unit >= 0 && fold.instance !== group.unit) {
        group.open = fold.children[fold.instance].open;
        fold.instance = group.unit;
        turned = turned || fold;
      }
    }
    if (turned) this.drawing.refresh(turned);
    this.selection = now.node;
    this.details.show(now.node);
    this.drawing.paint();
    if (this.tab === "graph") this.drawing.camera.show(this.drawing.graph.itemOf(now.node));
    else if (this.tab === "source") this.source.show();
  }

  // Along an edge from the selection: to an input above, to a user below.
  walk(down) {
    const { graph } = this.drawing;
    const from = this.selectedItem();
    const shown = graph.items.filter((item) => item.parent && !item.part);
    if (!shown.length) return;
    const next = from
      ? graph.edges.filter((edge) => (down ? edge.from : edge.to) === from).map((edge) => (down ? edge.to : edge.from))
      : [];
    const target = from ? next.find((item) => !item.part) || this.neighbour(shown, from, down) : shown[0];
    if (!target) return;
    this.select(target.node >= 0 ? target.node : target.group);
    this.drawing.camera.show(target);
  }

  // Where no edge leads on: the nearest item in that direction.
  neighbour(shown, from, down) {
    const ahead = shown.filter(
      (item) => item !== from && !item.open && (down ? item.y > from.y + 1 : item.y < from.y - 1),
    );
    return ahead.sort(
      (a, b) => Math.abs(a.y - from.y) - Math.abs(b.y - from.y) || Math.abs(a.x - from.x) - Math.abs(b.x - from.x),
    )[0];
  }

  outwards() {
    const group =
      typeof this.selection === "number"
        ? this.groups.home[this.selection]
        : this.selection
          ? this.selection.parent
          : null;
    if (group && group.parent) this.select(group);
    else this.select(null);
  }

  actions() {
    const names = Object.keys(this.views);
    const actions = {
      ArrowRight: () => this.steps.go(this.steps.at + 1),
      ArrowLeft: () => this.steps.go(this.steps.at - 1),
      ArrowDown: () => this.walk(true),
      ArrowUp: () => this.walk(false),
      Home: () => this.steps.go(0),
      End: () => this.steps.go(this.steps.events.length),
      " ": () => this.steps.play(),
      Enter: () => this.selection !== null && typeof this.selection !== "number" && this.toggle(this.selection),
      Backspace: () => this.outwards(),
      "+": () => this.drawing.camera.zoom(1.3),
      "=": () => this.drawing.camera.zoom(1.3),
      "-": () => this.drawing.camera.zoom(1 / 1.3),
      f: () => this.drawing.fit(),
      e: () => this.openMore(),
      c: () => this.closeAll(),
      t: () => this.switchTheme(),
      "?": () => this.help(),
      "/": () => byId("query").focus(),
      n: () => this.search.move(1),
      N: () => this.search.move(-1),
      Escape: () => this.clear(),
    };
    names.forEach((name, index) => (actions[String(index + 1)] = () => this.openTab(name)));
    return actions;
  }

  clear() {
    this.lit = new Set();
    byId("found").textContent = "";
    this.select(null);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    const target = event.target instanceof Element ? event.target : document.body;
    const typing = target.closest("input, textarea, select");
    if (typing && !(typing.id === "slider" && !event.key.startsWith("Arrow"))) return;
    if (target.closest("button, summary, [role=tab]") && (event.key === "Enter" || event.key === " ")) return;
    const stepping =
      event.key.startsWith("Arrow") && this.tab !== "graph" && (event.key === "ArrowDown" || event.key === "ArrowUp");
    const act = stepping ? null : this.actions()[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  help() {
    const rows = [
      ["← →", "step back and on"],
      ["Home End", "whole run, last step"],
      ["space", "play, pause"],
      ["↑ ↓", "along an edge to an input, to a user"],
      ["Enter", "open or close the selected box"],
      ["Backspace", "the box around the selection"],
      ["e c", "open one level more, close all"],
      ["+ − f", "zoom, show the whole graph"],
      ["/", "search; Enter and Shift+Enter go through the matches"],
      ["n N", "next and previous match"],
      [
        Object.keys(this.views)
          .map((_, index) => index + 1)
          .join(" "),
        "tabs",
      ],
      ["t", "light or dark"],
      ["Esc", "clear the selection"],
    ];
    const dialog = byId("keys");
    dialog.replaceChildren(
      make("h2", {}, "Keyboard"),
      make(
        "dl",
        {},
        rows.map(([key, text]) => [
          make(
            "dt",
            {},
            key.split(" ").map((part) => make("kbd", {}, part)),
          ),
          make("dd", {}, text),
        ]),
      ),
      make(
        "p",
        { class: "quiet" },
        "Search takes op:relu, module:encoder, line:31, shape:[8,3], name:weight, %12, and any words.",
      ),
      button("Close", () => dialog.close(), { class: "main" }),
    );
    dialog.showModal();
  }
}

const app = new App(readRun());
// For those who look into the page, and for its tests.
window.wayfareView = app;
