// Stepping through the run, event by event: forward, decisions, then backward.

const PHASES = { f: "forward", b: "backward", a: "backward", d: "decision", g: "forward" };
const PER_SECOND = 4;

class Steps {
  constructor(app) {
    this.app = app;
    this.events = app.run.events;
    this.at = 0;
    this.timer = null;
    this.slider = byId("slider");
    const bar = byId("steps");
    bar.hidden = !this.events.length;
    this.slider.max = this.events.length;
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    const press = (id, act) => byId(id).addEventListener("click", act);
    press("step-first", () => this.go(0));
    press("step-back", () => this.go(this.at - 1));
    press("step-on", () => this.go(this.at + 1));
    press("step-last", () => this.go(this.events.length));
    press("play", () => this.play());
    this.drawPhases();
  }

  // {kind, node, phase, ...} of the step that is shown, or null for the whole run.
  current() {
    return this.at > 0 ? this.read(this.at) : null;
  }

  read(step) {
    const { run } = this.app;
    const [kind, subject, ...more] = this.events[step - 1];
    const group = kind === "g" && this.app.batching ? this.app.batching.groups[subject] : null;
    const node = kind === "g" ? (group && run.has(group.node) ? group.node : -1) : run.has(subject) ? subject : -1;
    return { kind, node, group, phase: PHASES[kind] || "forward", more, step };
  }

  go(step) {
    const next = clamp(step, 0, this.events.length);
    if (next === this.at && step !== 0) return this.pause();
    this.at = next;
    this.slider.value = next;
    const now = this.current();
    this.slider.setAttribute("aria-valuetext", this.sentence(now));
    byId("now").replaceChildren(...this.caption(now));
    this.app.stepped(now);
    if (next === this.events.length) this.pause();
    return undefined;
  }

  sentence(now) {
    if (!now) return `the whole run, ${plural(this.events.length, "step")}`;
    const { run } = this.app;
    const node = now.node >= 0 ? `%${now.node} ${run.label(now.node)}` : "";
    return `step ${now.step} of ${this.events.length}, ${now.phase} ${node}`;
  }

  caption(now) {
    const { run } = this.app;
    if (!now)
      return [make("span", { class: "quiet" }, `${plural(this.events.length, "step")}: → steps on, space plays`)];
    const sign = { forward: "▼ forward", backward: "▲ backward", decision: "◆ decision" }[now.phase];
    const parts = [
      make("span", { class: "quiet" }, `${now.step} / ${this.events.length}`),
      make("b", { class: now.phase }, now.kind === "a" ? "▲ gradient kept" : now.kind === "g" ? "▼ group" : sign),
    ];
    if (now.group) parts.push(make("span", {}, `${run.text(now.group.name)} ×${now.group.size ?? ""}`));
    if (now.node >= 0) {
      parts.push(
        make("span", { class: "id" }, `%${now.node}`),
        make("b", {}, shortened(run.label(now.node), 40)),
        make("span", { class: "quiet" }, run.shape(now.node)),
      );
    }
    if (now.kind === "d")
      parts.push(make("span", {}, `${run.text(now.more[0])} → ${shortened(run.text(now.more[1]), 40)}`));
    const site = now.kind === "d" ? run.siteAt(now.more[2]) : now.node >= 0 ? run.site(now.node) : null;
    if (site) parts.push(make("code", {}, `${site.name}:${site.line}`));
    const memory = listOf(run.raw.memory)[now.step - 1];
    if (Number.isFinite(memory)) parts.push(make("span", { class: "quiet end" }, bytesText(memory)));
    return parts;
  }

  play() {
    if (this.timer) return this.pause();
    if (this.at >= this.events.length) this.at = 0;
    byId("play").textContent = "❚❚ Pause";
    byId("play").setAttribute("aria-label", "Pause");
    // A long run plays faster, so that it ends within a few minutes.
    const speed = clamp(this.events.length / 120, PER_SECOND, 30);
    this.timer = setInterval(() => this.go(this.at + 1), 1000 / speed);
    return this.go(this.at + 1);
  }

  pause() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "▶ Play";
    byId("play").setAttribute("aria-label", "Play");
  }

  // Above the slider: the stretches of forward and backward, and a diamond where Python decided.
  drawPhases() {
    const picture = byId("phases");
    const total = this.events.length;
    if (!total) return;
    picture.setAttribute("viewBox", `0 0 1000 14`);
    picture.setAttribute("preserveAspectRatio", "none");
    let start = 0;
    const stretch = (end, phase) => {
      if (end > start)
        picture.append(
          draw("rect", {
            class: phase,
            x: (start / total) * 1000,
            y: phase === "backward" ? 7 : 4,
            width: ((end - start) / total) * 1000,
            height: phase === "backward" ? 3 : 6,
          }),
        );
      start = end;
    };
    let phase = null;
    const diamonds = [];
    this.events.forEach(([kind], index) => {
      if (kind === "d") diamonds.push(index);
      const here = kind === "b" || kind === "a" ? "backward" : "forward";
      if (phase && here !== phase) stretch(index, phase);
      phase = here;
    });
    stretch(total, phase);
    const skip = Math.ceil(diamonds.length / 200);
    diamonds
      .filter((_, index) => index % skip === 0)
      .forEach((index) => {
        const x = ((index + 0.5) / total) * 1000;
        picture.append(draw("path", { class: "decision", d: `M${x},1 l3,6 l-3,6 l-3,-6 z` }));
      });
  }
}
