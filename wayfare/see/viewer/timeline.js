// Memory over the run as a chart: where it rises, where it peaks, where backward gives it back.

class Timeline {
  constructor(app) {
    this.app = app;
    this.panel = byId("panel-timeline");
    this.memory = listOf(app.run.raw.memory).map((bytes) => (Number.isFinite(bytes) ? bytes : 0));
  }

  static has(run) {
    return listOf(run.raw.memory).length > 1;
  }

  show() {
    const { run } = this.app;
    const peak = this.memory.reduce((best, bytes, index) => (bytes > this.memory[best] ? index : best), 0);
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    const chart = this.chart(peak);
    this.panel.replaceChildren(
      make(
        "div",
        { class: "sheet" },
        make("h2", {}, "Memory over the run"),
        make(
          "p",
          { class: "quiet" },
          `Bytes alive after each of ${plural(this.memory.length, "step")}. Click to go to a step.`,
        ),
        this.readout,
        chart,
        this.largest(),
      ),
    );
    this.say(this.app.steps.at || peak + 1, this.app.steps.at ? "" : "the peak");
    return run;
  }

  chart(peak) {
    const [width, height, left, foot] = [1180, 340, 76, 26];
    const most = Math.max(this.memory[peak], 1);
    const count = this.memory.length;
    const x = (index) => left + (index / Math.max(count - 1, 1)) * (width - left - 12);
    const y = (bytes) => 12 + (1 - bytes / most) * (height - foot - 12);
    const picture = draw("svg", {
      class: "chart",
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: 0,
      "aria-label": `Memory over the run, peak ${bytesText(most)} at step ${peak + 1}`,
    });
    this.bands(picture, x, height - foot, count);
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      picture.append(
        draw("line", { class: "rule", x1: left, x2: width - 12, y1: y(most * share), y2: y(most * share) }),
        draw("text", { class: "tick", x: left - 10, y: y(most * share) + 4 }, bytesText(Math.round(most * share))),
      );
    }
    const points = this.thinned().map(([index, bytes]) => `${x(index).toFixed(1)},${y(bytes).toFixed(1)}`);
    picture.append(
      draw("path", { class: "area", d: `M${x(0)},${y(0)}L${points.join("L")}L${x(count - 1)},${y(0)}z` }),
      draw("path", { class: "curve", d: `M${points.join("L")}` }),
      draw("circle", { class: "peak", cx: x(peak), cy: y(most), r: 5 }),
      draw(
        "text",
        {
          class: `peak ${x(peak) > width - 160 ? "end" : ""}`,
          x: x(peak) + (x(peak) > width - 160 ? -10 : 10),
          y: y(most) + 16,
        },
        `peak ${bytesText(most)}`,
      ),
    );
    const line = draw("line", { class: "cursor", y1: 12, y2: height - foot, x1: 0, x2: 0, visibility: "hidden" });
    picture.append(line);
    const stepAt = (event) => {
      const box = picture.getBoundingClientRect();
      const share = (((event.clientX - box.left) / box.width) * width - left) / (width - left - 12);
      return clamp(Math.round(share * (count - 1)) + 1, 1, count);
    };
    const point = (step) => {
      line.setAttribute("x1", x(step - 1));
      line.setAttribute("x2", x(step - 1));
      line.setAttribute("visibility", "visible");
      this.say(step, "");
    };
    picture.addEventListener("pointermove", (event) => point(stepAt(event)));
    picture.addEventListener("click", (event) => {
      const step = stepAt(event);
      this.app.openTab("graph");
      this.app.steps.go(step);
    });
    if (this.app.steps.at) point(this.app.steps.at);
    return picture;
  }

  // Behind the curve: forward plain, backward shaded and named.
  bands(picture, x, bottom, count) {
    const { events } = this.app.run;
    let start = 0;
    const isBackward = (index) => ["b", "a"].includes((events[index] || [])[0]);
    for (let index = 1; index <= count; index += 1) {
      if (index < count && isBackward(index) === isBackward(start)) continue;
      const wide = x(index - 1) - x(start);
      const name = isBackward(start) ? "backward" : "forward";
      picture.append(
        draw("rect", { class: `band ${name}`, x: x(start), y: 12, width: Math.max(wide, 0.5), height: bottom - 12 }),
      );
      if (wide > 70)
        picture.append(
          draw(
            "text",
            { class: "band", x: x(start) + wide / 2, y: bottom + 18 },
            name === "forward" ? "▼ forward" : "▲ backward",
          ),
        );
      start = index;
    }
  }

  // At most two points for each pixel: the least and the most of the stretch under it.
  thinned() {
    const all = this.memory.map((bytes, index) => [index, bytes]);
    const size = Math.ceil(all.length / 1200);
    if (size < 3) return all;
    const kept = [];
    for (let start = 0; start < all.length; start += size) {
      const slice = all.slice(start, start + size);
      const low = slice.reduce((a, b) => (b[1] < a[1] ? b : a));
      const high = slice.reduce((a, b) => (b[1] > a[1] ? b : a));
      kept.push(...(low[0] < high[0] ? [low, high] : [high, low]));
    }
    return kept;
  }

  say(step, note) {
    const now = this.app.steps.events[step - 1] ? this.app.steps.read(step) : null;
    this.readout.replaceChildren(
      make("b", {}, bytesText(this.memory[step - 1] ?? NaN)),
      make("span", { class: "quiet" }, ` after step ${step}${note ? `, ${note}` : ""} `),
      ...(now
        ? this.app.steps
            .caption(now)
            .slice(1, 6)
            .flatMap((part) => [" ", part])
        : []),
    );
  }

  largest() {
    const { run, details } = this.app;
    const nodes = [];
    for (let node = 0; node < run.count; node += 1) if (run.cell("bytes", node, 0) > 0) nodes.push(node);
    nodes.sort((a, b) => run.cell("bytes", b, 0) - run.cell("bytes", a, 0));
    if (!nodes.length) return null;
    return make(
      "section",
      {},
      make("h3", {}, "Largest values"),
      make(
        "table",
        { class: "plain" },
        make(
          "tbody",
          {},
          nodes
            .slice(0, 12)
            .map((node) =>
              make(
                "tr",
                {},
                make("td", {}, details.link(node)),
                make("td", {}, run.place(node)),
                make("td", { class: "right" }, bytesText(run.cell("bytes", node, 0))),
              ),
            ),
        ),
      ),
    );
  }
}
