/** The layout of a GPU's tile, and its description as text. Shared by rows and map. */

import { gib, number, plural } from "./dom.js";

const WHOLE = 1000;
const MANY = 16;

/**
 * Rectangles of a tile, in fractions of its width and height: {x, y, w, h, kind, part}. `kind` is pod, free, short
 * (the node lacks CPU or memory for most pods), stranded (free, but not allocatable now) or none (stranded, without
 * a MIG instance).
 */
export function rectangles(gpu) {
  if (gpu.slices && gpu.parts.every((part) => part.size)) return slices(gpu);
  return gpu.counted ? devices(gpu) : shares(gpu);
}

/** The MIG instances at their positions, and the areas without an instance. */
function slices(gpu) {
  const found = [];
  const covered = new Array(gpu.slices).fill(false);
  for (const part of gpu.parts) {
    covered.fill(true, part.start, part.start + part.size);
    found.push(rectangle(part.start / gpu.slices, part.size / gpu.slices, part, kindOf(gpu, part)));
  }
  const rest = gpu.counted ? "none" : freeKind(gpu);
  covered.forEach((is, place) => {
    if (!is) found.push({ x: place / gpu.slices, y: 0, w: 1 / gpu.slices, h: 1, kind: rest, part: null });
  });
  return found;
}

/** Counted devices side by side, allocated ones first. */
function devices(gpu) {
  const sum = gpu.parts.reduce((total, part) => total + part.milli, 0);
  const total = Math.max(sum, sum > 0.9 * WHOLE ? 1 : WHOLE);
  const found = [];
  let x = 0;
  for (const part of [...gpu.parts].sort((a, b) => (a.pod ? 0 : 1) - (b.pod ? 0 : 1))) {
    const count = part.devices <= MANY ? part.devices : 1;
    const w = (sum ? part.milli / total : 1 / gpu.parts.length) / count;
    for (let i = 0; i < count; i += 1, x += w) found.push(rectangle(x, w, part, kindOf(gpu, part)));
  }
  if (x < 0.99) found.push({ x, y: 0, w: 1 - x, h: 1, kind: "none", part: null });
  return found;
}

/** Shares: compute above, memory below. What remains of one when the other is used up is stranded. */
function shares(gpu) {
  const lanes = gpu.shared ? 2 : 1;
  const amounts = [(part) => part.milli / WHOLE, (part) => part.mib / (gpu.memory || 1)];
  const used = amounts.map((of) => Math.min(1, gpu.parts.reduce((sum, part) => sum + of(part), 0)));
  const lane = lanes === 2 ? [0, 1] : [used[1] > used[0] ? 1 : 0];
  return lane.flatMap((which, row) => {
    const found = [];
    let x = 0;
    const add = (w, kind, part) => {
      const width = Math.min(w, 1 - x);
      if (width > 0.002) found.push({ x, y: row / lanes, w: width, h: 1 / lanes, kind, part });
      x += Math.max(0, width);
    };
    for (const part of gpu.parts) add(amounts[which](part), "pod", part);
    add(1, gpu.strands === ["compute", "memory"][which] ? "stranded" : freeKind(gpu), null);
    return found;
  });
}

function rectangle(x, w, part, kind) {
  return { x, y: 0, w, h: 1, kind, part };
}

function kindOf(gpu, part) {
  return part.pod ? "pod" : freeKind(gpu);
}

const freeKind = (gpu) => (gpu.isUsable ? (gpu.isShort ? "short" : "free") : "stranded");

/** "GPU 3", or the name of a device of DRA. */
export const gpuName = (gpu) => gpu.name || `GPU ${gpu.index}`;

/** A part as text: "mig-3g.40gb", "2 x gpu.shared", "25 % and 8 GiB". */
export function partText(part) {
  if (part.resource) {
    const name = part.resource.replace(/^nvidia\.com\//, "");
    return part.devices > 1 ? `${part.devices} × ${name}` : name;
  }
  const amounts = [];
  if (part.milli) amounts.push(`${number(part.milli / 10, 1)} %`);
  if (part.mib) amounts.push(gib(part.mib));
  return amounts.join(" and ");
}

/** Whether free room of a GPU cannot be used at present. */
export const isStranded = (gpu) => gpu.strandedMilli > 5 || Boolean(gpu.strands);

/** The description of a GPU, in a few lines. */
export function gpuText(gpu) {
  const lines = [];
  if (gpu.isFree) lines.push("free");
  else lines.push(`${Math.round(100 * gpu.share)} % in use`);
  const shown = gpu.parts.filter((part) => part.pod).slice(0, 6);
  for (const part of shown) lines.push(`${part.pod.key}  (${partText(part)})`);
  const rest = gpu.parts.filter((part) => part.pod).length - shown.length;
  if (rest > 0) lines.push(`and ${plural(rest, "more part")}`);
  const free = gpu.parts.filter((part) => !part.pod);
  if (free.length && gpu.slices) lines.push(`free: ${tally(free)}`);
  if (isStranded(gpu)) lines.push(`${gpu.isShort ? "limited" : "stranded"}: ${gpu.why}`);
  return lines.join("\n");
}

function tally(parts) {
  const counts = new Map();
  for (const part of parts) {
    const name = part.resource.replace(/^nvidia\.com\/(mig-)?/, "");
    counts.set(name, (counts.get(name) ?? 0) + part.devices);
  }
  return [...counts].map(([name, count]) => `${count} × ${name}`).join(", ");
}

/** The description of a node, in one sentence. */
export function nodeText(node) {
  const parts = [`${node.whole} of ${plural(node.total, "GPU")} entirely free`];
  if (node.closed) parts.push(node.closed);
  if (node.spot) parts.push("spot");
  if (node.reserved) parts.push(node.reserved);
  if (node.problem) parts.push(node.problem);
  return parts.join("; ");
}
