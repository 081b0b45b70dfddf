/** The fleet as rows; only the visible ones are in the document. */

import { el, hideTip, number, plural, showTip } from "./dom.js";
import { gpuName, gpuText, nodeText, partText, rectangles } from "./tile.js";

const SPARE = 6;
const TAIL = 10; // characters at the end of a name that are always shown, because names differ there
const PERCENT = (value) => `${(100 * value).toFixed(2)}%`;

/** The tile of a GPU. `look`: {palette, filter, picked}, the colors, the filter and the selected pod's key. */
export function tile(gpu, look, attributes = {}) {
  const element = el("div", { class: gpu.over ? "gpu over" : "gpu", "data-gpu": gpu.index, ...attributes });
  for (const { x, y, w, h, kind, part } of rectangles(gpu)) {
    const pod = part?.pod ?? null;
    const classes = ["part", kind === "none" ? "stranded" : kind];
    if (h < 1 && y === 0) classes.push("lane");
    if (pod && look.picked === pod.key) classes.push("picked");
    else if (pod && look.dims(pod)) classes.push("dim");
    const piece = el("div", { class: classes.join(" "), "data-pod": pod?.key ?? null });
    if (pod) piece.style.setProperty("--c", look.palette.of(pod, gpu));
    [piece.style.left, piece.style.top, piece.style.width, piece.style.height] = [x, y, w, h].map(PERCENT);
    element.append(piece);
  }
  return element;
}

function bar(label, [free, total]) {
  const used = total ? Math.min(1, Math.max(0, 1 - free / total)) : 0;
  const fill = el("b", { class: used > 0.95 ? "tight" : null });
  fill.style.width = PERCENT(used);
  return el("span", { class: "bar" }, label, el("i", { title: `${Math.round(100 * used)} % of ${label} in use` }, fill));
}

function pills(node) {
  const found = [];
  if (node.spot) found.push(el("span", { class: "pill spot" }, "spot"));
  if (node.reserved) found.push(el("span", { class: "pill reserved", title: node.reserved }, "reserved"));
  if (node.closed) found.push(el("span", { class: "pill closed", title: node.closed }, node.closed.replace(/^node (is|has) /, "")));
  if (node.problem) found.push(el("span", { class: "pill problem", title: node.problem }, "problem"));
  return found;
}

/** A mark for nodes where only the device plugin knows the GPUs of pods. */
function guess(node) {
  const title = "The device plugin chooses the GPUs: pods are drawn in order of arrival";
  return node.pods.some((pod) => !pod.exact) ? el("span", { class: "guess", title }, "≈") : null;
}

function left(node) {
  if (!node.gpus.length) return "";
  if (!node.offered) return el("span", { class: "muted" }, "no new pods");
  const rest = node.free - node.whole > 0.05 ? `${number(node.free, 1)} in total` : "";
  const free = node.whole ? [el("b", { class: "num" }, String(node.whole)), " whole"] : rest ? "none whole" : el("span", { class: "muted" }, "full");
  return [free, rest && el("div", { class: "muted num" }, rest)].flat();
}

/** The gap between two tiles: filled if one pod holds both GPUs whole. */
function between(first, second, look) {
  const pod = wholePod(first);
  const joined = pod && pod === wholePod(second);
  const element = el("i", { class: `between${joined ? " joined" : ""}${pod && look.dims(pod) ? " dim" : ""}` });
  if (pod) element.style.setProperty("--c", look.palette.of(pod, first));
  return element;
}

const wholePod = (gpu) => (gpu.parts.length === 1 && gpu.milli > 990 ? gpu.parts[0].pod : null);

/** The element of a node. */
function row(node, look) {
  const name = node.name.slice(0, node.name.length - look.ends[1]);
  const islands = node.islands.map((group) =>
    el(
      "div",
      { class: group.linked ? "island linked" : "island" },
      group.gpus.flatMap((index, i) => {
        const gpu = node.gpus[index];
        const label = `${gpuName(gpu)}: ${gpuText(gpu).replaceAll("\n", ", ")}`;
        const cell = tile(gpu, look, { role: "gridcell", id: `cell-${node.name}-${index}`, "aria-label": label });
        return i ? [between(node.gpus[group.gpus[i - 1]], gpu, look), cell] : [cell];
      }),
    ),
  );
  return el(
    "div",
    { class: "row", role: "row", "data-node": node.name },
    el(
      "div",
      { role: "rowheader", id: `cell-${node.name}-node`, "aria-label": `${node.name}, ${node.model}: ${nodeText(node)}` },
      el("div", { class: "name", title: node.name }, el("span", {}, name.slice(0, -TAIL)), el("span", {}, name.slice(-TAIL))),
      el("div", { class: "sub" }, el("span", { class: "model" }, node.model || "unknown model"), guess(node), pills(node)),
    ),
    el("div", { class: "islands" }, islands.length ? islands : el("span", { class: "none" }, "no GPU to show")),
    el("div", { class: "bars", role: "gridcell" }, bar("CPU", node.cpu), bar("RAM", node.memory)),
    el("div", { class: "left", role: "gridcell" }, left(node)),
  );
}

export class Rows {
  #grid;
  #spacer = el("div", { class: "spacer", role: "presentation" });
  #made = new Map();
  #nodes = [];
  #look = null;
  #active = null;
  #high = 50;

  constructor(grid) {
    this.#grid = grid;
    grid.addEventListener("scroll", () => this.#draw(), { passive: true });
    new ResizeObserver(() => this.#draw()).observe(grid);
    this.#spacer.addEventListener("mousemove", (event) => this.#point(event));
    this.#spacer.addEventListener("mouseleave", hideTip);
  }

  /** Show these nodes; `active` is [position, GPU or -1] or null. */
  show(nodes, look, active) {
    if (look.key !== this.#look?.key) this.#forget();
    [this.#nodes, this.#look, this.#active] = [nodes, look, active];
    if (this.#spacer.parentNode !== this.#grid) this.#grid.replaceChildren(this.#spacer);
    this.#grid.setAttribute("aria-rowcount", nodes.length);
    this.#draw();
  }

  /** Scroll until the position is visible. */
  reveal(position) {
    const { scrollTop, clientHeight } = this.#grid;
    if (position * this.#high < scrollTop) this.#grid.scrollTop = position * this.#high;
    else if ((position + 1) * this.#high > scrollTop + clientHeight) {
      this.#grid.scrollTop = (position + 1) * this.#high - clientHeight;
    }
    this.#draw();
  }

  get page() {
    return Math.max(1, Math.floor(this.#grid.clientHeight / this.#high) - 1);
  }

  /** The target of an arrow key from a position: [position, GPU or -1]. */
  move([position, gpu], key) {
    const last = this.#nodes.length - 1;
    const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -this.page, PageDown: this.page, Home: -last, End: last };
    if (key in steps) {
      const to = Math.min(last, Math.max(0, position + steps[key]));
      return [to, Math.min(gpu, this.#nodes[to].gpus.length - 1)];
    }
    const to = gpu + (key === "ArrowLeft" ? -1 : 1);
    return [position, Math.max(-1, Math.min(to, this.#nodes[position].gpus.length - 1))];
  }

  #forget() {
    this.#made.clear();
    this.#spacer.replaceChildren();
  }

  #draw() {
    if (this.#spacer.parentNode !== this.#grid || !this.#look) return;
    this.#high = parseFloat(getComputedStyle(this.#grid).getPropertyValue("--row"));
    this.#spacer.style.height = `${this.#nodes.length * this.#high}px`;
    const first = Math.max(0, Math.floor(this.#grid.scrollTop / this.#high) - SPARE);
    const last = Math.min(this.#nodes.length, first + Math.ceil(this.#grid.clientHeight / this.#high) + 2 * SPARE);
    const wanted = new Map();
    for (let i = first; i < last; i += 1) {
      const node = this.#nodes[i];
      const known = this.#made.get(node.name);
      const element = known?.node === node ? known.element : row(node, this.#look);
      element.style.transform = `translateY(${i * this.#high}px)`;
      element.setAttribute("aria-rowindex", i + 1);
      wanted.set(node.name, { node, element });
    }
    for (const [name, { element }] of this.#made) if (wanted.get(name)?.element !== element) element.remove();
    for (const { element } of wanted.values()) if (!element.isConnected) this.#spacer.append(element);
    this.#made = wanted;
    this.#mark();
  }

  /** Mark the active row and tile, and tell assistive technology. */
  #mark() {
    for (const marked of this.#spacer.querySelectorAll(".active")) marked.classList.remove("active");
    this.#grid.removeAttribute("aria-activedescendant");
    const node = this.#active && this.#nodes[this.#active[0]];
    const made = node && this.#made.get(node.name);
    if (!made) return;
    const gpu = this.#active[1];
    made.element.classList.add("active");
    if (gpu >= 0) made.element.querySelector(`[data-gpu="${gpu}"]`)?.classList.add("active");
    this.#grid.setAttribute("aria-activedescendant", `cell-${node.name}-${gpu >= 0 ? gpu : "node"}`);
  }

  #point(event) {
    const found = this.at(event.target);
    if (!found?.gpu) return hideTip();
    const pod = event.target.dataset.pod;
    const part = pod && found.gpu.parts.find((one) => one.pod?.key === pod);
    const title = `${found.node.name}, ${gpuName(found.gpu)}`;
    const note = part && !part.pod.exact ? "\n(only the device plugin knows which GPU)" : "";
    const own = part ? `${part.pod.key}\n${partText(part)} here, ${plural(part.pod.gpus.size, "GPU")} in total${note}\n\n` : "";
    return showTip(event.clientX, event.clientY, title, own + gpuText(found.gpu));
  }

  /** The content of an element of a row: {node, position, gpu, pod}, null for none. */
  at(target) {
    const name = target.closest?.(".row")?.dataset.node;
    const position = this.#nodes.findIndex((node) => node.name === name);
    if (position < 0) return null;
    const node = this.#nodes[position];
    const cell = target.closest(".gpu");
    return { node, position, gpu: cell ? node.gpus[Number(cell.dataset.gpu)] : null, pod: target.dataset.pod ?? null };
  }
}
