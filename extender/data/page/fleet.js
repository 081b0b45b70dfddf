/** The fleet of /debug/fleet: decoded, updated, filtered and sorted. */

const WHOLE = 1000;
const GONE = 0.05; // a smaller free fraction of compute or memory counts as none, as in packing/fleet/stranded.py

/** A row of /debug/fleet as an object. See FleetRow in extender/explain/fleet_row.py. */
export function decode(row) {
  const [total, missing, used, free, whole, offered] = row.count ?? [0, 0, 0, 0, 0, false];
  const node = {
    name: row.name,
    model: row.model,
    spot: row.spot,
    closed: row.closed,
    counted: Boolean(row.count), // whether the census counts it: it has GPUs
    offered,
    total,
    used,
    free,
    whole: offered ? whole : 0,
    idle: offered && total > missing && whole === total - missing,
    problem: row.problem,
    reserved: row.reserved,
    cpu: row.cpu_milli,
    memory: row.memory_mib,
    layout: row.layout,
    beside: row.pods_beside,
    more: row.more,
    zone: row.zone,
    labels: row.labels,
  };
  node.pods = row.pods.map(([key, queue, exact, assumed, labels]) => {
    const namespace = key.slice(0, Math.max(0, key.indexOf("/")));
    return { key, queue, namespace, exact, assumed, labels, node, gpus: new Set(), milli: 0, mib: 0 };
  });
  node.gpus = row.gpus.map(([name, memory, slices, takes], index) => {
    return { node, index, name, memory, slices, takes, parts: [], milli: 0, mib: 0 };
  });
  for (const part of row.parts) addPart(node, row.resources, part);
  node.gpus.forEach(summarise);
  node.islands = islandsOf(node, row.islands);
  node.text = [node.name, node.model, ...node.pods.map((pod) => `${pod.key} ${pod.queue}`)].join(" ").toLowerCase();
  return node;
}

function addPart(node, resources, [gpu, pod, resource, devices, milli, mib, start, size]) {
  const on = node.gpus[gpu];
  if (!on) return;
  const holder = pod < 0 ? null : node.pods[pod];
  on.parts.push({ pod: holder, resource: resources[resource] ?? "", devices, milli, mib, start, size });
  if (holder) {
    on.milli += milli;
    on.mib += mib;
    holder.gpus.add(gpu);
    holder.milli += milli;
    holder.mib += mib;
  }
}

/** Used and free fractions of a GPU. */
function summarise(gpu) {
  const { node, parts } = gpu;
  const memory = gpu.memory || 1;
  const free = parts.filter((part) => !part.pod);
  gpu.counted = parts.some((part) => part.resource);
  gpu.shared = !gpu.counted && parts.some((part) => part.milli) && parts.some((part) => part.mib);
  gpu.isFree = free.length === parts.length;
  gpu.over = gpu.milli > WHOLE + 6 || Boolean(gpu.memory && gpu.mib > memory * 1.01);
  gpu.share = Math.min(1, Math.max(gpu.milli / WHOLE, gpu.memory ? gpu.mib / memory : 0));
  const left = gpu.counted ? free.reduce((sum, part) => sum + part.milli, 0) : WHOLE - gpu.milli;
  gpu.freeMilli = Math.max(0, Math.min(WHOLE, left));
  gpu.freeMib = gpu.counted ? free.reduce((sum, part) => sum + part.mib, 0) : Math.max(0, memory - gpu.mib);
  gpu.isOffered = node.offered && gpu.takes;
  const none = [gpu.freeMilli < GONE * WHOLE, gpu.freeMib < GONE * memory];
  gpu.strands = gpu.shared && none[0] !== none[1] ? (none[0] ? "memory" : "compute") : "";
}

/**
 * The stranded free room of a node, and the reason. The node has too little CPU or host memory for average pods
 * on max(R - C / c, 0) of its R free GPUs (packing/fleet/stranded.py): the last ones are `isShort`. Nine tenths of
 * the node's CPU or memory per GPU are always enough.
 */
export function strand(node, [cpu, memory]) {
  const offered = node.gpus.filter((gpu) => gpu.isOffered);
  const free = offered.reduce((sum, gpu) => sum + gpu.freeMilli, 0) / WHOLE;
  const lacking = [[node.cpu, cpu], [node.memory, memory]].map(([[left, total], average]) => {
    const each = Math.min(average, (0.9 * total) / node.gpus.length);
    return free - Math.max(0, left) / Math.max(each, 1e-6);
  });
  let short = Math.max(0, ...lacking);
  const what = lacking[0] >= lacking[1] ? "CPU" : "memory";
  for (const gpu of node.gpus) {
    gpu.why = node.offered ? (gpu.takes ? "" : "the GPU accepts no pods") : node.closed;
    gpu.isUsable = !gpu.why;
    gpu.isShort = false;
  }
  for (const gpu of offered.reverse()) {
    const own = gpu.freeMilli / WHOLE;
    gpu.isShort = own > 0.005 && short >= own / 2;
    if (gpu.isShort) gpu.why = `the node has less ${what} left than pods request per GPU on average; a smaller pod may fit`;
    short -= own;
  }
  for (const gpu of node.gpus) {
    gpu.strandedMilli = gpu.why || gpu.strands === "compute" ? gpu.freeMilli : 0;
    gpu.why ||= gpu.strands && `only ${gpu.strands} is left`;
  }
  node.stranded = node.gpus.reduce((sum, gpu) => sum + gpu.strandedMilli, 0) / WHOLE;
}

/** The GPUs in groups of NVLink peers, in order; `linked` for islands. */
function islandsOf(node, islands) {
  const groups = islands.map((gpus) => ({ linked: gpus.length > 1, gpus: gpus.filter((gpu) => node.gpus[gpu]) }));
  const grouped = new Set(groups.flatMap((group) => group.gpus));
  const alone = node.gpus.map((gpu) => gpu.index).filter((index) => !grouped.has(index));
  if (alone.length) groups.push({ linked: false, gpus: alone });
  return groups.filter((group) => group.gpus.length).sort((a, b) => a.gpus[0] - b.gpus[0]);
}

/** All nodes, and the pending pods. */
export class Fleet {
  nodes = new Map();
  pods = new Map();
  waiting = [];
  moreWaiting = 0;
  totals = null; // of the census: see Totals in extender/cluster/census.py
  beside = [0, 0]; // CPU in milli and MiB that pods request per GPU
  version = "";
  changes = 0;

  /** Apply an answer of /debug/fleet; returns whether anything changed. */
  apply(answer) {
    if (answer.all) this.nodes.clear();
    const fresh = answer.nodes.map(decode);
    for (const node of fresh) this.nodes.set(node.name, node);
    const moved = answer.beside.some((amount, i) => amount !== this.beside[i]);
    this.beside = answer.beside;
    for (const node of moved ? this.nodes.values() : fresh) strand(node, this.beside);
    if (answer.waiting) [this.waiting, this.moreWaiting] = [answer.waiting, answer.more_waiting];
    this.version = answer.version;
    this.totals = answer.totals;
    const changed = answer.all || answer.nodes.length || answer.waiting || moved;
    if (changed) {
      this.changes += 1;
      this.pods = new Map();
      for (const node of this.nodes.values()) for (const pod of node.pods) this.pods.set(pod.key, pod);
    }
    return Boolean(changed);
  }

  /** The nodes that have GPUs, or should have. */
  withGpus() {
    return [...this.nodes.values()].filter((node) => node.counted);
  }
}

const IS = {
  free: (node) => node.whole > 0,
  idle: (node) => node.idle,
  full: (node) => node.gpus.length > 0 && node.gpus.every((gpu) => gpu.freeMilli < 10),
  mig: (node) => node.gpus.some((gpu) => gpu.slices),
  spot: (node) => node.spot,
  closed: (node) => Boolean(node.closed),
  problem: (node) => Boolean(node.problem),
  stranded: (node) => node.stranded > 0 || node.gpus.some((gpu) => gpu.strands),
};

/** A filter of nodes and pods from the user's words. `pod` is null if no word can name a pod. */
export function parseFilter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const not = word.length > 1 && word.startsWith("-");
    const [key, value] = split(not ? word.slice(1) : word);
    return { not, key, value };
  });
  const node = (one) => tests.every((test) => nodeTest(one, test) !== test.not);
  const names = tests.filter((test) => !test.not && ["", "pod", "queue", "label", "ns"].includes(test.key));
  return {
    empty: !words.length,
    node,
    /** Whether the words name pods of this node rather than the node itself, and this is one of them. */
    picks: (pod) => names.length > 0 && names.every((test) => podTest(pod, test)),
  };
}

function split(word) {
  const at = word.indexOf(":");
  const key = word.slice(0, Math.max(0, at));
  return ["node", "pod", "queue", "model", "is", "zone", "label", "ns"].includes(key) ? [key, word.slice(at + 1)] : ["", word];
}

function nodeTest(node, { key, value }) {
  if (key === "is") return (IS[value] ?? (() => false))(node);
  if (key === "node") return node.name.toLowerCase().includes(value);
  if (key === "model") return node.model.toLowerCase().includes(value);
  if (key === "zone") return node.zone.toLowerCase().includes(value);
  if (key === "label") return has(node.labels, value) || node.pods.some((pod) => podTest(pod, { key, value }));
  if (key) return node.pods.some((pod) => podTest(pod, { key, value }));
  return node.text.includes(value);
}

const has = (labels, value) => labels.some((label) => label.toLowerCase().includes(value));

function podTest(pod, { key, value }) {
  if (key === "label") return has(pod.labels, value);
  if (key === "ns") return pod.namespace.toLowerCase() === value;
  const text = key === "queue" ? pod.queue : key === "pod" ? pod.key : `${pod.key} ${pod.queue}`;
  return text.toLowerCase().includes(value);
}

/** Lengths of the common prefix and suffix of all names, cut at the end of a name component. */
export function commonEnds(names) {
  if (names.length < 2) return [0, 0];
  const shared = (texts) => {
    let count = 0;
    while (texts.every((text) => count < text.length && text[count] === texts[0][count])) count += 1;
    while (count && !/[-._]/.test(texts[0][count - 1])) count -= 1;
    return count;
  };
  const start = shared(names);
  return [start, shared(names.map((name) => [...name.slice(start)].reverse().join("")))];
}

const byName = new Intl.Collator("en", { numeric: true }).compare;
export const SORTS = {
  model: ["Model, name", (a, b) => byName(a.model, b.model) || byName(a.name, b.name)],
  name: ["Name", (a, b) => byName(a.name, b.name)],
  free: ["Most free", (a, b) => b.free - a.free || byName(a.name, b.name)],
  used: ["Most in use", (a, b) => b.used - a.used || byName(a.name, b.name)],
  stranded: ["Most stranded", (a, b) => b.stranded - a.stranded || byName(a.name, b.name)],
};

/** Keys of labels that pods share, the most frequent first. */
export function labelKeys(fleet) {
  const counts = new Map();
  for (const pod of fleet.pods.values()) for (const label of pod.labels) add(counts, label.slice(0, label.indexOf("=")), 1);
  return [...counts].filter(([, pods]) => pods > 1).sort((a, b) => b[1] - a[1] || byName(a[0], b[0])).map(([key]) => key).slice(0, 20);
}

/** The pending pods grouped by job, in the order of their first pods. */
export function byJob(waiting) {
  const jobs = new Map();
  for (const pod of waiting) {
    const key = pod.job ? `${pod.pod.split("/")[0]} ${pod.job}` : pod.pod;
    jobs.set(key, [...(jobs.get(key) ?? []), pod]);
  }
  return [...jobs.values()];
}

const add = (sums, key, amount) => sums.set(key, (sums.get(key) ?? 0) + amount);

/** {name, gpus, pods, waiting} of each namespace, queue or value of a label, the largest first; "" for pods without one. `more`: further names. */
export function teams(fleet, by, more = []) {
  const found = new Map();
  const teamOf = (pod) => {
    const name = by === "namespace" || by === "queue" ? pod[by] : (pod.labels.find((one) => one.startsWith(`${by}=`)) ?? "").slice(by.length + 1);
    if (!found.has(name)) found.set(name, { name, gpus: 0, pods: 0, waiting: 0 });
    return found.get(name);
  };
  for (const pod of fleet.pods.values()) {
    const team = teamOf(pod);
    team.gpus += pod.milli / WHOLE;
    team.pods += 1;
  }
  for (const name of more) teamOf({ [by]: name });
  for (const pod of fleet.waiting) teamOf({ ...pod, namespace: pod.pod.split("/")[0] }).waiting += 1;
  return [...found.values()].sort((a, b) => b.gpus - a.gpus || b.waiting - a.waiting || byName(a.name, b.name)).slice(0, 30);
}

/** Suggestions for the next word of a filter. */
export function suggestions(fleet) {
  const nodes = [...fleet.nodes.values()];
  const words = [
    ...nodes.map((node) => node.zone && `zone:${node.zone}`),
    ...[...fleet.pods.values()].map((pod) => `ns:${pod.namespace}`),
    ...nodes.flatMap((node) => node.labels).map((label) => `label:${label}`),
  ];
  return [...new Set(words)].filter((word) => word && !word.includes(" ")).sort(byName).slice(0, 200);
}
