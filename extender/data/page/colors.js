/** Colors of pods: by queue, namespace, pod, or utilization of the GPU. Safe for color-blind users: the hues are
 * those of Okabe and Ito (jfly.uni-koeln.de/color), slightly darker on white. */

const HUES = {
  light: ["#0072b2", "#e08a00", "#0f8f6c", "#c15f98", "#4aa3d8", "#c9500a", "#7a5cab", "#a89200"],
  dark: ["#3f97d4", "#e69f00", "#1fae86", "#d487b3", "#7cc5ee", "#e2703a", "#9f85cf", "#d3c033"],
};
const OTHER = { light: "#8793a1", dark: "#7c8897" };
const RAMP = { light: ["#cfe3f1", "#08456e"], dark: ["#23405a", "#9bd3fa"] };

export const COLORS = {
  queue: "queue",
  namespace: "namespace",
  pod: "pod",
  use: "use",
};

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Colors of one fleet at one moment. `names` are those with their own color, in order. */
export class Palette {
  constructor(by, fleet, dark) {
    this.by = by;
    this.mode = dark ? "dark" : "light";
    this.names = by === "queue" || by === "namespace" ? this.#names(fleet) : [];
    this.ofName = new Map(this.names.map((name, i) => [name, HUES[this.mode][i]]));
    this.key = `${by} ${this.mode} ${this.names.join(" ")}`;
  }

  /** Assign colors to the names with the most GPUs, in alphabetical order so that they seldom change. */
  #names(fleet) {
    const sums = new Map();
    for (const pod of fleet.pods.values()) {
      const name = pod[this.by];
      if (name) sums.set(name, (sums.get(name) ?? 0) + pod.milli);
    }
    const largest = [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    return largest.slice(0, HUES.light.length).map(([name]) => name).sort();
  }

  /** The color of a pod on a GPU. */
  of(pod, gpu) {
    if (this.by === "use") return this.ramp(gpu.share);
    if (this.by === "pod") return HUES[this.mode][hash(pod.key) % HUES.light.length];
    return this.ofName.get(pod[this.by]) ?? OTHER[this.mode];
  }

  /** A color for the used fraction, 0 to 1. */
  ramp(share) {
    const [from, to] = RAMP[this.mode].map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
    return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * share)).join(" ")})`;
  }

  get other() {
    return OTHER[this.mode];
  }
}

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i += 1) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return (value ^ (value >>> 15)) >>> 0;
}
