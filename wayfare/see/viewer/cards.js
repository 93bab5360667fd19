// How nodes and boxes look: a card for a node or a closed box, a ground and a head for an open one.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

function textWidth(text, size, weight) {
  const font = `${weight || 400} ${size}px ${FONT}`;
  const key = font + text;
  if (!widths.has(key)) {
    pen.font = font;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}

class Cards {
  constructor(app) {
    this.app = app;
    this.small = app.run.count <= SMALL;
  }

  // What an item is called where it stands: without the part of the path that the boxes around it say already.
  title(item) {
    const { run } = this.app;
    const { group } = item;
    if (item.part) return item.part.which;
    const full = group ? group.label : run.label(item.node);
    let above = item.parent;
    while (above && above.group && !(above.group.kind === "call" && above.group.path)) above = above.parent;
    const prefix = above ? `${above.group.path}.` : "";
    if (prefix && full.startsWith(prefix)) return full.slice(prefix.length) || full;
    // The last cell of a name is what tells a parameter apart; the box around says the rest.
    if (!group && run.kind(item.node) === LEAF && full.length > 26) return `…${full.slice(-25)}`;
    return full;
  }

  subtitle(item) {
    const { run } = this.app;
    if (item.part) return `×${item.part.times}`;
    if (item.node >= 0) {
      const more = run.outputs.get(item.node);
      const named = run.label(item.node) !== run.constant(item.node);
      const value = this.small && named ? run.shortValue(item.node, "value") : "";
      return `${run.shape(item.node)}${more ? ` +${more.length}` : ""}${value ? ` = ${value}` : ""}`;
    }
    const { group } = item;
    const size = plural(group.count, "node");
    return group.note ? `${group.note} · ${size}` : size;
  }

  // In a small run the numbers themselves are on the cards, so that one sees them come back.
  gradient(item) {
    const text = this.small ? this.app.run.shortValue(item.node, "gradvalue") : "";
    return text ? `∂ ${text}` : "";
  }

  badge(item) {
    return item.group && item.group.kind === "repeat" && !item.part ? `×${item.group.times}` : "";
  }

  // Width and height of an item as a card.
  measure(item) {
    const title = shortened(this.title(item), 34);
    const sub = shortened(this.subtitle(item), 38);
    const badge = this.badge(item) ? textWidth(this.badge(item), 12, 600) + 22 : 0;
    const arrow = item.group && !item.part ? 18 : 0;
    const width = Math.max(textWidth(title, 13, 600) + badge, textWidth(sub, 11)) + arrow + 26;
    if (item.group) return [Math.max(width, item.part ? 70 : 110), item.part ? 38 : 46];
    const gradient = this.gradient(item);
    return [Math.max(width, gradient ? textWidth(gradient, 11) + 26 : 64, 64), gradient ? 58 : 42];
  }

  description(item) {
    const { run } = this.app;
    const { node, group } = item;
    if (node >= 0) return `%${node} ${run.label(node)} ${run.shape(node)} ${run.place(node)}`.trim();
    if (item.part) return `${plural(item.part.times, "instance")} of ${group.label} ${item.part.which}`;
    const state = item.open ? "open" : "closed";
    return `${group.label} ${this.badge(item)} ${group.note}, ${plural(group.count, "node")}, ${state}`;
  }

  frame(item, kind) {
    return draw(
      "g",
      {
        transform: `translate(${item.x.toFixed(1)},${item.y.toFixed(1)})`,
        "data-key": item.key,
        "data-kind": kind,
        role: "img",
        "aria-label": this.description(item),
      },
      draw("title", {}, this.description(item)),
    );
  }

  ground(item) {
    const { width, height } = item;
    const place = `translate(${item.x.toFixed(1)},${item.y.toFixed(1)})`;
    const ground = draw(
      "g",
      { transform: place, "data-key": item.key },
      draw("rect", { class: "box", width, height, rx: 10 }),
    );
    ground.viewItem = item;
    return ground;
  }

  openBox(item, detail) {
    const { group } = item;
    const box = this.frame(item, "box");
    if (!detail) return box;
    const head = draw(
      "g",
      { class: "head", "data-act": "toggle" },
      draw("rect", { class: "hit", width: item.width, height: HEADER - 4, rx: 10 }),
      draw("text", { class: "fold", x: 12, y: 20 }, "▾"),
      draw("text", { class: "title", x: 26, y: 20 }, shortened(this.title(item), 34)),
    );
    box.append(head);
    if (group.kind === "repeat") box.append(this.instances(item));
    return box;
  }

  // The header of an open repeat: which of the instances is shown, and the way to the others.
  instances(item) {
    const { group } = item;
    const shown = group.all ? `all ${group.times}` : `${group.instance + 1} of ${group.times}`;
    const width = textWidth(shown, 12) + 60;
    const control = draw("g", { class: "instances", transform: `translate(${item.width - width - 8},6)` });
    const press = (x, sign, act, label) =>
      draw(
        "g",
        { class: "press", "data-act": act, transform: `translate(${x},0)`, role: "button", "aria-label": label },
        draw("rect", { width: 22, height: 20, rx: 5 }),
        draw("text", { x: 11, y: 14.5 }, sign),
      );
    control.append(
      press(0, "‹", "earlier", "Earlier instance"),
      draw("text", { class: "count", x: width / 2, y: 14.5 }, shown),
      press(width - 22, "›", "later", "Later instance"),
    );
    return control;
  }

  card(item, detail) {
    const { run } = this.app;
    const { node, group, width, height } = item;
    const kind = group ? (item.part ? "part" : group.kind) : ["op", "leaf", "input"][run.kind(node)] || "op";
    const card = this.frame(item, kind);
    const round = kind === "leaf" || kind === "input" ? 21 : group ? 9 : 7;
    if (kind === "repeat") {
      for (const shift of [8, 4])
        card.append(draw("rect", { class: "behind", x: shift, y: -shift, width, height, rx: round }));
    }
    card.append(draw("rect", { class: "card", width, height, rx: round }));
    if (!detail) return card;
    const middle = width / 2;
    const title = shortened(this.title(item), 34);
    const badge = this.badge(item);
    if (group && !item.part) {
      card.append(
        draw(
          "g",
          { class: "fold", "data-act": "toggle" },
          draw("rect", { class: "hit", x: 2, y: 2, width: 24, height: height - 4, rx: 6 }),
          draw("text", { x: 14, y: 20 }, "▸"),
        ),
        draw("text", { class: "title start", x: 26, y: 19 }, title),
        draw("text", { class: "sub start", x: 26, y: 35 }, shortened(this.subtitle(item), 38)),
      );
      if (badge) card.append(draw("text", { class: "badge", x: width - 12, y: 19 }, badge));
    } else {
      const gradient = item.part ? "" : this.gradient(item);
      const line = height / 2 - (gradient ? 11 : 3);
      card.append(
        draw("text", { class: "title", x: middle, y: line }, title),
        draw("text", { class: "sub", x: middle, y: line + 15 }, shortened(this.subtitle(item), 38)),
      );
      if (gradient) card.append(draw("text", { class: "gradient", x: middle, y: line + 31 }, gradient));
    }
    card.append(...this.marks(item));
    return card;
  }

  marks(item) {
    const { run, diff } = this.app;
    const { node, group, width, height } = item;
    if (item.part) return [];
    const marks = [];
    const decided = node >= 0 ? run.decisions.has(node) : group.marks.decisions > 0;
    if (decided)
      marks.push(
        draw(
          "path",
          { class: "decision", d: `M${width},-7 l7,7 l-7,7 l-7,-7 z` },
          draw("title", {}, "Python looked at this value"),
        ),
      );
    const bad = node >= 0 ? run.isBad(node, "stats") || run.isBad(node, "grad") : group.marks.bad > 0;
    if (bad)
      marks.push(
        draw(
          "g",
          { class: "bad", transform: `translate(${width - 30},${height - 5})` },
          draw("rect", { width: 34, height: 14, rx: 4 }),
          draw("text", { x: 17, y: 10.5 }, node >= 0 ? run.badWord(node) : "NaN"),
        ),
      );
    const sign = diff ? diff.sign(item) : "";
    if (sign)
      marks.push(
        draw(
          "g",
          { class: "difference", transform: "translate(-6,-7)" },
          draw("rect", { width: textWidth(sign, 11, 600) + 10, height: 16, rx: 8 }),
          draw("text", { x: (textWidth(sign, 11, 600) + 10) / 2, y: 12 }, sign),
        ),
      );
    return marks;
  }
}
