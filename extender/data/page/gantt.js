/** GPUs of a job over time: a bar for each run of a pod in the last hours. */

import { csvButton, duration, el, hideTip, number, plural, showTip } from "./dom.js";
import { commonEnds } from "./fleet.js";

const SHORTEST = 600; // minimum seconds on the axis
const LONGEST = 36 * 3600;
const HEAD = ["pod", "job", "node", "GPUs", "start", "end"];
const iso = (at) => (at === null ? "" : new Date(1000 * at).toISOString());

/** `runs`: {pod, job, node, gpus, start, end} in Unix seconds, `end` null while the pod runs; the oldest first. */
export function jobRuns(runs, go) {
  if (!runs.length) return null;
  const now = Date.now() / 1000;
  const from = Math.min(now - SHORTEST, Math.max(now - LONGEST, runs[0].start));
  const place = (at) => (100 * (Math.max(at, from) - from)) / (now - from);
  const pods = Map.groupBy(runs, (run) => run.pod);
  const [before] = commonEnds([...pods.keys()]);
  const used = runs.filter((run) => run.end === null).reduce((sum, run) => sum + run.gpus, 0);
  const rows = [...pods].map(([pod, its]) =>
    el("tr", {},
      el("td", { title: pod }, el("button", { class: "link", type: "button", onclick: () => go(`pod/${pod}`) }, pod.slice(before).replace(/^.*\//, ""))),
      el("td", { class: "lane" }, its.map((run) => bar(run, place(run.start), place(run.end ?? now))))));
  const axis = el("div", { class: "axis" }, el("span", {}, `${duration(now - from)} ago`), el("span", {}, "now"));
  return [
    el("div", { class: "head" }, el("h3", {}, `GPUs of ${runs[0].job || "this pod"} over time`),
      csvButton("runs", HEAD, runs.map((run) => [run.pod, run.job, run.node, run.gpus, iso(run.start), iso(run.end)]))),
    el("p", { class: "muted" }, `${plural(pods.size, "pod")}, ${number(used, 1)} GPUs now`),
    el("table", { class: "gantt" }, rows, el("tr", {}, el("td"), el("td", {}, axis))),
  ];
}

function bar(run, from, to) {
  const seconds = (run.end ?? Date.now() / 1000) - run.start;
  const text = `${number(run.gpus, 2)} GPUs on ${run.node} for ${duration(seconds)}, from ${new Date(1000 * run.start).toLocaleString()}`;
  return el("span", {
    class: run.end === null ? "run" : "run over",
    role: "img",
    "aria-label": text,
    "--left": `${from}%`,
    "--width": `${to - from}%`,
    onpointermove: (event) => showTip(event.clientX, event.clientY, run.pod, text),
    onpointerleave: hideTip,
  });
}
