// Where the reader looks: pan, zoom, fit, with the pointer and with two fingers.

const NEAREST = 3;
const FARTHEST = 0.02;

// What is shown stays this far from the border.
const MARGIN = 24;

// How far a stretch must move to lie inside: not at all, a little, or, from far away, to the middle.
function needed(low, high, room) {
  if (low >= MARGIN && high <= room - MARGIN) return 0;
  if (high - low > room - 2 * MARGIN) return MARGIN - low;
  if (high < -room / 3 || low > (room * 4) / 3) return room / 2 - (low + high) / 2;
  return low < MARGIN ? 3 * MARGIN - low : room - 3 * MARGIN - high;
}

class Camera {
  constructor(svg, changed) {
    this.svg = svg;
    this.changed = changed;
    this.x = this.y = 0;
    this.scale = 1;
    this.pointers = new Map();
    this.dragged = false;
    svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    svg.addEventListener("pointerdown", (event) => this.down(event));
    svg.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, (event) => this.up(event));
  }

  get size() {
    const box = this.svg.getBoundingClientRect();
    return [box.width || 800, box.height || 600];
  }

  transform() {
    return `translate(${this.x},${this.y}) scale(${this.scale})`;
  }

  // The part of the sheet that is on the screen, and `margin` screens around it.
  window(margin) {
    const [width, height] = this.size;
    return {
      left: (-this.x - width * margin) / this.scale,
      top: (-this.y - height * margin) / this.scale,
      right: (-this.x + width * (1 + margin)) / this.scale,
      bottom: (-this.y + height * (1 + margin)) / this.scale,
    };
  }

  zoomAt(factor, x, y) {
    const scale = clamp(this.scale * factor, FARTHEST, NEAREST);
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.changed();
  }

  zoom(factor) {
    const [width, height] = this.size;
    this.zoomAt(factor, width / 2, height / 2);
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.changed();
  }

  // All of a box if it can still be read at that size; otherwise its beginning.
  fit(box, smallest) {
    const [width, height] = this.size;
    // The buttons stand along the upper border.
    const [top, room] = [40, height - 60];
    const whole = Math.min((width - 40) / Math.max(box.width, 1), room / Math.max(box.height, 1), 1.15);
    const scale = clamp(Math.max(whole, smallest || 0), FARTHEST, NEAREST);
    this.scale = scale;
    this.x = width / 2 - (box.x + box.width / 2) * scale;
    this.y = box.height * scale <= room ? top + room / 2 - (box.y + box.height / 2) * scale : top - box.y * scale;
    this.changed();
  }

  // Bring a box into sight with the least of movement.
  show(box) {
    const [width, height] = this.size;
    const left = box.x * this.scale + this.x;
    const top = box.y * this.scale + this.y;
    const right = left + box.width * this.scale;
    const bottom = top + box.height * this.scale;
    const around = left < MARGIN && right > width - MARGIN && top < MARGIN && bottom > height - MARGIN;
    if (around) return;
    if (box.width * this.scale < 40) {
      this.scale = Math.max(this.scale, 0.8);
      this.x = width / 2 - (box.x + box.width / 2) * this.scale;
      this.y = height / 2 - (box.y + box.height / 2) * this.scale;
      this.changed();
      return;
    }
    const dx = needed(left, right, width);
    const dy = needed(top, bottom, height);
    if (dx || dy) this.pan(dx, dy);
  }

  wheel(event) {
    event.preventDefault();
    const [x, y] = this.at(event);
    const unit = event.deltaMode === 1 ? 18 : event.deltaMode === 2 ? 200 : 1;
    this.zoomAt(Math.exp(-clamp(event.deltaY * unit, -240, 240) * 0.0022), x, y);
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  down(event) {
    if (event.button !== 0) return;
    this.pointers.set(event.pointerId, this.at(event));
    this.start = this.at(event);
    this.dragged = false;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = this.at(event);
    const others = [...this.pointers.entries()].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [, other] = others[0];
      const distance = (a, b) => Math.max(10, Math.hypot(a[0] - b[0], a[1] - b[1]));
      this.zoomAt(distance(now, other) / distance(before, other), other[0], other[1]);
      this.dragged = true;
    } else if (this.dragged || Math.hypot(now[0] - this.start[0], now[1] - this.start[1]) > 4) {
      // A press becomes a drag only here, so that a click still reaches what was pressed.
      if (!this.dragged) this.svg.setPointerCapture(event.pointerId);
      this.dragged = true;
      this.svg.classList.add("dragging");
      this.pan(now[0] - before[0], now[1] - before[1]);
    }
    this.pointers.set(event.pointerId, now);
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    this.svg.classList.remove("dragging");
  }
}
