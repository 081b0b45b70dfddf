/** Details of a node, GPU or pod, as elements for the panel. */

import { duration, el, gib, number, plural, startsIn } from "./dom.js";
import { jobRuns } from "./gantt.js";
import { tile } from "./rows.js";
import { gpuName, isStranded, partText } from "./tile.js";

const facts = (pairs) =>
  el("dl", { class: "facts" }, pairs.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

const link = (text, go) => el("button", { class: "link", type: "button", onclick: go }, text);

const raw = (path) => el("p", { class: "source" }, el("a", { href: path, target: "_blank", rel: "noopener" }, `GET /${path}`));

const cpu = ([free, total]) => `${number(free / 1000, 1)} of ${number(total / 1000, 1)} CPUs free`;
const memory = ([free, total]) => `${gib(free)} of ${gib(total)} free`;

/** Pods with their share of a node or GPU. `parts`: {pod, text}. */
function podList(parts, look, go) {
  const items = parts.map(({ pod, gpu, text }) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.setProperty("--c", look.palette.of(pod, gpu));
    return el("li", {}, swatch, link(pod.key, () => go(`pod/${pod.key}`)), el("span", { class: "amount" }, text));
  });
  return items.length ? el("ul", { class: "list" }, items) : el("p", { class: "muted" }, "No pod uses it.");
}

/** A GPU: its tile, its size, and its pods with their shares. */
export function gpuStory(gpu, look, go) {
  const { node } = gpu;
  const parts = gpu.parts.filter((part) => part.pod).map((part) => ({ pod: part.pod, gpu, text: partText(part) }));
  const free = gpu.parts.filter((part) => !part.pod).map((part) => partText(part));
  const island = node.islands.find((group) => group.linked && group.gpus.includes(gpu.index));
  const guess = parts.some(({ pod }) => !pod.exact);
  return [
    el("div", { class: "big" }, tile(gpu, look), axis(gpu)),
    facts([
      ["Node", link(node.name, () => go(`node/${node.name}`))],
      ["Model", node.model],
      ["Memory", gpu.memory ? gib(gpu.memory) : ""],
      ["In use", `${Math.round(gpu.milli / 10)} % of compute${gpu.memory ? `, ${gib(gpu.mib)}` : ""}`],
      ["Free", free.length ? [...new Set(free)].join(", ") : gpu.freeMilli ? `${Math.round(gpu.freeMilli / 10)} %, ${gib(gpu.freeMib)}` : "nothing"],
      [gpu.isShort ? "Limited" : "Stranded", isStranded(gpu) ? gpu.why : ""],
      ["NVLink", island ? `island of GPUs ${island.gpus.join(", ")}` : ""],
      ["MIG layout", gpu.slices ? node.layout || "unknown; instances are drawn evenly" : ""],
    ]),
    el("h3", {}, `${plural(parts.length, "part")} in use`),
    podList(parts, look, go),
    guess ? el("p", { class: "muted" }, "The device plugin chooses the GPU. Pods are drawn in order of arrival.") : null,
    raw(`debug/nodes/${encodeURIComponent(node.name)}`),
  ];
}

function axis(gpu) {
  const [from, to] = gpu.slices ? ["slice 0", `slice ${gpu.slices - 1}`] : ["0 %", gpu.shared ? "compute above, memory below" : "100 %"];
  return el("div", { class: "axis", "aria-hidden": "true" }, el("span", {}, from), el("span", {}, to));
}

/** A node: its free resources, why it accepts no pods, and its pods. */
export function nodeStory(node, look, go) {
  const parts = node.pods.map((pod) => {
    const gpus = [...pod.gpus];
    return { pod, gpu: node.gpus[gpus[0]], text: `GPU ${gpus.slice(0, 9).join(", ")}${gpus.length > 9 ? " …" : ""}` };
  });
  const tiles = node.gpus.map((gpu) => {
    const label = `${gpuName(gpu)} of ${node.name}`;
    return tile(gpu, look, { role: "button", tabindex: 0, "aria-label": label, onclick: () => go(`gpu/${node.name}/${gpu.index}`),
      onkeydown: (event) => event.key === "Enter" && go(`gpu/${node.name}/${gpu.index}`) });
  });
  return [
    el("div", { class: "islands" }, tiles),
    facts([
      ["Model", node.model || "unknown"],
      ["Accepts no pods", node.closed ? el("span", { class: "problem" }, node.closed) : ""],
      ["Problem", node.problem ? el("span", { class: "problem" }, node.problem) : ""],
      ["Reserved", node.reserved.replace(/^reserved /, "")],
      ["GPUs", `${node.whole} of ${node.total} entirely free, ${number(node.free, 1)} in total`],
      ["CPU", cpu(node.cpu)],
      ["Memory", memory(node.memory)],
      ["Spot", node.spot ? "yes, the provider may reclaim it at any time" : ""],
      ["Other pods", node.beside ? plural(node.beside, "pod") + " without a GPU" : ""],
      ["Not shown", node.more ? plural(node.more, "part") : ""],
    ]),
    el("h3", {}, plural(node.pods.length, "pod")),
    podList(parts, look, go),
    raw(`debug/nodes/${encodeURIComponent(node.name)}`),
  ];
}

/** A pod: `report` is the answer of /debug/pods/..., null until it arrives; `pod` is from the fleet. */
export function podStory(key, pod, report, problem, go) {
  const path = `debug/pods/${key.split("/").map(encodeURIComponent).join("/")}`;
  const node = report?.node || pod?.node.name || "";
  return [
    facts([
      ["Node", node ? link(node, () => go(`node/${node}`)) : "none yet"],
      ["GPUs", pod ? [...pod.gpus].map((index) => [link(String(index), () => go(`gpu/${pod.node.name}/${index}`)), " "]).flat() : ""],
      ["Has", pod ? `${Math.round(pod.milli / 10)} % of a GPU${pod.mib ? `, ${gib(pod.mib)}` : ""}` : ""],
      ["Requests", report?.asked ?? ""],
      ["Queue", pod?.queue ?? ""],
      ["Note", report?.note ?? ""],
    ]),
    gangStory(report, go),
    problem ? el("p", { class: "problem" }, problem) : null,
    report ? null : problem ? null : el("p", { class: "muted" }, "loading …"),
    ...(report?.now ? nowStory(report.now, go) : []),
    jobRuns(report?.runs ?? [], go),
    ...decisions(report?.decisions ?? [], go),
    report ? el("details", {}, el("summary", {}, "Everything, as JSON"), el("pre", { class: "raw mono", tabindex: 0 }, JSON.stringify(report, null, 2))) : null,
    raw(path),
  ];
}

/** The gang of a pod, and the nodes of its members. */
function gangStory(report, go) {
  if (!report?.gang) return null;
  const rows = report.members.map(([key, node]) =>
    el("tr", {}, el("td", {}, link(key, () => go(`pod/${key}`))), el("td", {}, node ? link(node, () => go(`node/${node}`)) : "waits")));
  const head = el("tr", {}, el("th", {}, "member"), el("th", {}, "node"));
  return [el("h3", {}, "Gang"), el("p", {}, report.gang), el("table", { class: "costs" }, head, rows)];
}

/** Nodes where a pending pod fits now, and ways to make room on others. */
function nowStory(now, go) {
  const nodes = now.nodes + Object.values(now.passed_over ?? {}).reduce((sum, count) => sum + count, 0);
  return [
    el("h3", {}, `Now: ${now.error ? "" : `fits on ${plural(now.fits, "node")} of ${nodes}`}`),
    now.held ? el("p", { class: "problem" }, `It cannot be scheduled yet: ${now.held}. Once it is released:`) : null,
    now.error ? el("p", { class: "problem" }, now.error) : verdict(now),
    now.starts ? el("p", {}, startsIn(now.starts)) : null,
    ...(now.hints ?? []).map((hint) => el("p", {}, hint)),
    options(now.best ?? [], go),
    refusals(now, go),
    evictions(now.evictions, go),
  ].flat();
}

/** Why it fits nowhere, and ways to make room. */
function verdict(now) {
  const { why, lacks, ways, kind } = now.verdict ?? {};
  if (!why || ["FITS", "UNKNOWN"].includes(kind)) return null;
  return [
    el("p", { class: "problem" }, why),
    lacks ? el("p", { class: "muted" }, lacks) : null,
    ways?.length ? el("ul", {}, ways.map((way) => el("li", {}, way))) : null,
  ];
}

function refusals(now, go) {
  const rows = (now.refusals ?? []).map((one) => {
    const lacks = (one.lacks ?? []).map((need) => need.text).join("; ");
    const near = one.nearest && lacks ? el("div", { class: "muted" }, link(one.nearest, () => go(`node/${one.nearest}`)), `: ${lacks}`) : null;
    const help = one.advice ? el("div", { class: "muted" }, `→ ${one.advice}`) : null;
    return el("tr", {}, el("td", { class: "number" }, number(one.nodes)), el("td", {}, one.reason, near, help));
  });
  const passed = Object.entries(now.passed_over ?? {}).map(([why, nodes]) =>
    el("tr", {}, el("td", { class: "number" }, number(nodes)), el("td", {}, `${why} (kube-scheduler rules them out)`)));
  if (!rows.length && !passed.length) return null;
  const head = el("tr", {}, el("th", { class: "number" }, "nodes"), el("th", {}, "why not"));
  return el("table", { class: "costs" }, head, rows, passed);
}

/** Pods that would be evicted, and why others would not. */
function evictions(found, go) {
  if (!found) return null;
  const by = { "kube-scheduler": "kube-scheduler evicts", evictor: { on: "the evictor evicts", recommend: "the evictor recommends evicting" }[found.evictor] ?? "the evictor, if enabled, evicts" };
  const items = found.best.map((one) => {
    const others = [...one.other_nodes, ...one.leaving.map((pod) => `${pod} (terminating)`)];
    const who = one.pods ? `${by[one.acts]} ${plural(one.pods, "pod")}` : "room becomes free";
    const pods = [...one.victims.map((pod) => link(pod, () => go(`pod/${pod}`))), ...others].flatMap((pod, i) => (i ? [", ", pod] : [pod]));
    return el("p", {}, `${who} on `, link(one.node, () => go(`node/${one.node}`)), ": ", pods, ` (${one.loses})`);
  });
  return [
    el("h3", {}, items.length ? "Evictions that make it fit" : "No eviction makes it fit"),
    ...items,
    counts("nodes", items.length ? "why not on other nodes" : "why not", found.elsewhere),
    counts("pods", "may not be evicted for it", found.protected),
  ];
}

function counts(what, title, found) {
  const rows = Object.entries(found).map(([why, count]) => el("tr", {}, el("td", { class: "number" }, number(count)), el("td", {}, why)));
  return rows.length ? el("table", { class: "costs" }, el("tr", {}, el("th", { class: "number" }, what), el("th", {}, title)), rows) : null;
}

/** The best nodes, with their costs. */
function options(best, go) {
  if (!best.length) return null;
  const rows = best.map((one) => {
    const terms = Object.entries(one.terms ?? {}).filter(([, value]) => Math.abs(value) > 5e-4);
    const text = terms.map(([name, value]) => `${name} ${number(value, 3)}`).join(", ");
    return el("tr", {},
      el("td", {}, link(one.node, () => go(`node/${one.node}`)), el("div", { class: "muted" }, one.why), el("div", { class: "muted num" }, text)),
      el("td", { class: "number" }, number(one.cost, 3)),
      el("td", { class: "number" }, one.score === null ? "" : String(one.score)));
  });
  const head = el("tr", {}, el("th", {}, "best nodes"), el("th", { class: "number" }, "cost"), el("th", { class: "number" }, "score"));
  return el("table", { class: "costs" }, head, rows);
}

function decisions(found, go) {
  if (!found.length) return [];
  const items = found.map((one) => {
    const at = new Date(one.at);
    const seconds = (Date.now() - at) / 1000;
    const ago = `${seconds < 72000 ? at.toLocaleTimeString() : at.toLocaleString()}, ${duration(seconds)} ago`;
    return el("div", { class: "decision" }, el("div", {}, el("b", {}, one.verb), " ", el("span", { class: "at" }, ago)), el("div", {}, one.answer),
      options(one.explanation?.best ?? [], go), one.explanation ? refusals(one.explanation, go) : null);
  });
  return [el("h3", {}, "Last decisions"), ...items];
}
