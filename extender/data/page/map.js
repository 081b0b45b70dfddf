/** The fleet as a map: all nodes as small blocks on a canvas, in groups of one GPU model. */

import { el, hideTip, number, plural, showTip } from "./dom.js";
import { gpuName, gpuText, nodeText, rectangles } from "./tile.js";

const HEAD = 30;
const LABEL = 13; // the line of a node's name
const GAP = 7;
const PAD = 12;

function css(name) {
  const probe = el("i", {});
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** Sizes in pixels: of a GPU's bar, and the minimum width of a block, so that many nodes fit and few fill the map. */
function sizes(count) {
  if (count <= 120) return { bar: 14, high: 34, least: 72 };
  return count <= 600 ? { bar: 9, high: 24, least: 60 } : { bar: 7, high: 18, least: 52 };
}

/** A text cut in the middle to a maximum width: names of nodes differ at their ends. */
function fitted(context, text, width) {
  let [kept, shown] = [Math.min(text.length, 100), text];
  for (; kept > 2 && context.measureText(shown).width > width; kept -= 1) {
    shown = `${text.slice(0, Math.floor(kept / 3))}…${text.slice(text.length - Math.ceil((2 * kept) / 3))}`;
  }
  return shown;
}

export class FleetMap {
  #grid;
  #canvas = el("canvas", { class: "map", "aria-hidden": "true" });
  #spacer = el("div", { class: "spacer", role: "row" });
  #cell = el("div", { class: "hidden", role: "gridcell", id: "map-cell" });
  #nodes = [];
  #blocks = [];
  #groups = [];
  #look = null;
  #active = null;

  constructor(grid) {
    this.#grid = grid;
    this.#spacer.append(this.#canvas, this.#cell);
    grid.addEventListener("scroll", () => this.#draw(), { passive: true });
    new ResizeObserver(() => this.#lay()).observe(grid);
    this.#canvas.addEventListener("mousemove", (event) => this.#point(event));
    this.#canvas.addEventListener("mouseleave", hideTip);
  }

  show(nodes, look, active) {
    [this.#nodes, this.#look, this.#active] = [nodes, look, active];
    if (this.#spacer.parentNode !== this.#grid) this.#grid.replaceChildren(this.#spacer);
    this.#grid.setAttribute("aria-rowcount", nodes.length);
    this.#lay();
  }

  /** Assign a block to every node, and a heading to every group. */
  #lay() {
    if (this.#spacer.parentNode !== this.#grid || !this.#look) return;
    const width = this.#grid.clientWidth;
    const { bar: usual, high, least } = sizes(this.#nodes.length);
    this.#blocks = [];
    this.#groups = [];
    let [x, y, model] = [PAD, 4 - GAP - high, null]; // y: below the name
    this.#nodes.forEach((node, position) => {
      const gpus = Math.max(1, node.gpus.length);
      const bar = Math.min(usual, (width - 2 * PAD - 3) / gpus);
      const wide = Math.max(least, gpus * bar + 3);
      const isNew = this.#look.grouped ? node.model !== model : position === 0;
      if (isNew) {
        this.#groups.push({ y: y + high + GAP, model: node.model, nodes: [] });
        [x, y, model] = [PAD, y + high + GAP + LABEL + (this.#look.grouped ? HEAD : 0), node.model];
      } else if (x + wide > width - PAD) {
        [x, y] = [PAD, y + high + GAP + LABEL];
      }
      this.#groups.at(-1).nodes.push(node);
      this.#blocks.push({ node, position, x, y, w: wide, h: high, bar });
      x += wide + GAP;
    });
    this.#spacer.style.height = `${y + high + 16}px`;
    this.#draw();
  }

  #draw() {
    if (this.#spacer.parentNode !== this.#grid || !this.#look) return;
    const [width, height, scale] = [this.#grid.clientWidth, this.#grid.clientHeight, devicePixelRatio];
    Object.assign(this.#canvas, { width: width * scale, height: height * scale });
    [this.#canvas.style.width, this.#canvas.style.height] = [`${width}px`, `${height}px`];
    const context = this.#canvas.getContext("2d");
    const top = this.#grid.scrollTop;
    context.setTransform(scale, 0, 0, scale, 0, -top * scale);
    const names = ["--text", "--muted", "--line", "--line-strong", "--focus", "--surface", "--warn"];
    const colors = Object.fromEntries(names.map((name) => [name.slice(2), css(name)]));
    const hatch = this.#hatch(colors, scale);
    if (this.#look.grouped) this.#headings(context, colors, width);
    for (const block of this.#blocks) {
      if (block.y + block.h < top - 4 || block.y - LABEL > top + height) continue;
      this.#block(context, block, colors, hatch);
    }
    this.#mark();
  }

  #headings(context, colors, width) {
    context.textBaseline = "middle";
    for (const { y, model, nodes } of this.#groups) {
      const gpus = nodes.reduce((sum, node) => sum + node.total, 0);
      const used = nodes.reduce((sum, node) => sum + node.used, 0);
      context.font = "600 13px system-ui, sans-serif";
      context.fillStyle = colors.text;
      const title = (model || "unknown model").slice(0, 60);
      const [wide, line] = [Math.min(context.measureText(title).width, width - 2 * PAD), y + 18];
      context.fillText(fitted(context, title, wide), PAD, line);
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = colors.muted;
      const percent = gpus ? Math.round((100 * used) / gpus) : 0;
      const whole = nodes.reduce((sum, node) => sum + node.whole, 0);
      const texts = [plural(nodes.length, "node"), plural(gpus, "GPU"), `${percent} % in use`, `${number(whole)} entirely free`];
      const room = width - 2 * PAD - wide - 12;
      while (texts.length && context.measureText(texts.join(", ")).width > room) texts.pop();
      context.fillText(texts.join(", "), PAD + wide + 12, line);
    }
  }

  #hatch(colors, scale) {
    const tile = el("canvas", { width: 4 * scale, height: 4 * scale });
    const context = tile.getContext("2d");
    context.scale(scale, scale);
    context.fillStyle = colors.line;
    context.fillRect(0, 0, 4, 4);
    context.strokeStyle = colors.muted;
    for (const at of [-4, 0, 4]) {
      context.beginPath();
      context.moveTo(at, 4);
      context.lineTo(at + 4, 0);
      context.stroke();
    }
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    return pattern;
  }

  /** One node: a bar for each GPU, filled from below; a line under the bars of one island. */
  #block(context, { node, position, x, y, w, h, bar }, colors, hatch) {
    const { palette, picked, dims } = this.#look;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = node.closed ? colors.warn : colors.text;
    const [start, end] = this.#look.ends;
    context.fillText(fitted(context, node.name.slice(start, node.name.length - end), w), x + 1, y - LABEL / 2);
    node.gpus.forEach((gpu, i) => {
      const left = x + 1.5 + i * bar;
      context.fillStyle = colors.surface;
      context.fillRect(left, y + 1, bar - 1, h - 4);
      for (const { x: from, y: lane, w: part, h: share, kind, part: of } of rectangles(gpu)) {
        if (kind === "free") continue;
        const pod = of?.pod;
        context.fillStyle = pod ? palette.of(pod, gpu) : hatch;
        context.globalAlpha = pod && picked !== pod.key && dims(pod) ? 0.2 : kind === "short" ? 0.35 : 1;
        const low = y + 1 + (h - 4) * (1 - from - part);
        context.fillRect(left + lane * (bar - 1), low, share * (bar - 1), (h - 4) * part);
        if (pod && picked === pod.key) this.#frame(context, [left, low, bar - 1, (h - 4) * part], colors.text);
      }
      context.globalAlpha = 1;
      context.strokeStyle = colors["line-strong"];
      context.lineWidth = 0.7;
      context.strokeRect(left, y + 1, bar - 1, h - 4);
    });
    context.fillStyle = node.closed ? colors.warn : colors["line-strong"];
    if (!node.gpus.length) context.fillRect(x + 1, y + h / 2, w - 2, 2);
    for (const group of node.islands) {
      const [first, last] = [group.gpus[0], group.gpus.at(-1)];
      if (group.linked) context.fillRect(x + 1.5 + first * bar, y + h - 1.5, (last - first + 1) * bar - 1, 1.8);
    }
    if (this.#active?.[0] === position) this.#frame(context, [x - 1.5, y - 2, w + 2, h + 3], colors.focus);
  }

  #frame(context, box, color) {
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.strokeRect(...box);
  }

  #mark() {
    const node = this.#active && this.#nodes[this.#active[0]];
    const gpu = node?.gpus[this.#active[1]];
    const text = node ? `${node.name}, ${node.model}: ${gpu ? `${gpuName(gpu)}: ${gpuText(gpu)}` : nodeText(node)}` : "";
    if (this.#cell.textContent !== text) this.#cell.textContent = text;
    if (node) this.#grid.setAttribute("aria-activedescendant", "map-cell");
    else this.#grid.removeAttribute("aria-activedescendant");
  }

  reveal(position) {
    const block = this.#blocks[position];
    if (!block) return;
    const { scrollTop, clientHeight } = this.#grid;
    if (block.y - HEAD - LABEL < scrollTop) this.#grid.scrollTop = block.y - HEAD - LABEL;
    else if (block.y + block.h > scrollTop + clientHeight) this.#grid.scrollTop = block.y + block.h - clientHeight + 8;
    this.#draw();
  }

  move([position], key) {
    const last = this.#blocks.length - 1;
    const flat = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last };
    if (key in flat) return [Math.min(last, Math.max(0, position + flat[key])), -1];
    const [from, page] = [this.#blocks[position], key.startsWith("Page") ? 0.8 * this.#grid.clientHeight : 1];
    const down = key.endsWith("Down");
    const beyond = this.#blocks.filter((one) => (down ? one.y >= from.y + page : one.y <= from.y - page));
    const rows = beyond.map((one) => one.y);
    const y = down ? Math.min(...rows) : Math.max(...rows);
    const row = beyond.filter((one) => one.y === y);
    const near = (one) => Math.abs(one.x - from.x);
    return [row.length ? row.reduce((best, one) => (near(one) < near(best) ? one : best)).position : position, -1];
  }

  #point(event) {
    const found = this.at(event.target, event);
    if (!found) return hideTip();
    const title = found.gpu ? `${found.node.name}, ${gpuName(found.gpu)}` : found.node.name;
    const own = found.gpu ? `${gpuText(found.gpu)}\n\n` : "";
    return showTip(event.clientX, event.clientY, title, `${own}${found.node.model}\n${nodeText(found.node)}`);
  }

  /** The node and GPU at a point of the window. */
  at(target, event) {
    if (target !== this.#canvas) return null;
    const box = this.#canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top + this.#grid.scrollTop];
    const block = this.#blocks.find((one) => x >= one.x && x < one.x + one.w + 2 && y >= one.y - LABEL && y < one.y + one.h);
    if (!block) return null;
    const gpu = block.node.gpus[Math.floor((x - block.x - 1.5) / block.bar)] ?? null;
    return { node: block.node, position: block.position, gpu, pod: null };
  }
}
