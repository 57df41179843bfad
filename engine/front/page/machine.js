// The machine: asked once a second, drawn as numbers, and moved by the sliders. What is not known is not drawn.

import { count, figuresOf, KEPT, rates, scaled, spanOf } from "./figures.js";
import { ask, Problem } from "./server.js";
import { beginSliders, placeSliders } from "./sliders.js";

const EVERY = 1000; // milliseconds between two questions

const byId = (id) => document.getElementById(id);
let seenAt = 0; // when the machine was last looked at
let loaded = []; // names of the loaded models
const samples = new Map(); // of every loaded model, the oldest first: {at, state, totals}
const speeds = new Map(); // of every model that was loaded: tokens a second, of late

/** Watch the machine for as long as the page is seen. `model()` is the name of the model to draw. */
export function watch(model) {
  const look = async () => {
    try {
      if (!document.hidden) note((await ask("/machine")).models);
      draw(model());
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      samples.clear();
      nothing(error.message);
    } finally {
      setTimeout(look, EVERY);
    }
  };
  look();
  byId("model").addEventListener("change", () => draw(model()));
  beginSliders(model);
}

function note(models) {
  const [before, at] = [seenAt, performance.now()];
  seenAt = at;
  loaded = models.map(({ name }) => name);
  for (const name of samples.keys()) if (!loaded.includes(name)) samples.delete(name);
  for (const state of models) {
    const totals = { ...state.counters, ...state.work?.counts };
    if (totals.steps === undefined) continue; // it has been in the middle of a step since it was loaded
    let kept = samples.get(state.name) ?? [];
    // A worker that was not there before, or has taken another's place, began to count after the last look.
    if (!kept.length || totals.steps < kept.at(-1).totals.steps) {
      kept = before ? [{ at: before, state, totals: zeros(totals) }] : [];
    }
    samples.set(state.name, [...kept, { at, state, totals }].slice(-KEPT));
    const { tokens } = rates(samples.get(state.name));
    if (tokens !== undefined) speeds.set(state.name, [...(speeds.get(state.name) ?? []), tokens].slice(-KEPT));
  }
}

const zeros = (totals) => Object.fromEntries(Object.keys(totals).map((name) => [name, 0]));

function draw(name) {
  const kept = samples.get(name);
  if (kept === undefined) return nothing(whyNothing(name));
  const { state } = kept.at(-1);
  const threads = `${state.threads} ${state.threads === 1 ? "thread" : "threads"}`;
  const device = state.device === "cpu" ? `cpu, ${threads}` : state.device_text;
  byId("where").textContent =
    `${device} · ${scaled(state.size, "B", 1024)} of weights · conversations up to ${count(state.context)} tokens`;
  byId("span").textContent = spanOf(kept);
  const figures = figuresOf(kept, speeds.get(name) ?? []);
  const [speed, hits] = figures;
  byId("glance").textContent = speed.value + (hits.name === "Hit rate" ? ` · ${hits.value} hits` : "");
  const rows = byId("figures");
  figures.forEach((figure, index) => fill(rows.children[index] ?? rows.appendChild(row()), figure));
  while (rows.children.length > figures.length) rows.lastChild.remove();
  placeSliders(state);
}

function whyNothing(name) {
  if (!name) return "";
  if (loaded.includes(name)) return `${name} is loaded and busy with its first step.`;
  return `${name} is not loaded; the first message loads it.${loaded.length ? ` Loaded: ${loaded.join(", ")}.` : ""}`;
}

function nothing(why) {
  byId("where").textContent = why;
  byId("span").textContent = "";
  byId("glance").textContent = "";
  byId("figures").replaceChildren();
  byId("sliders").hidden = true;
}

const NAMESPACE = "http://www.w3.org/2000/svg";

function row() {
  const group = document.createElement("div");
  const term = document.createElement("dt");
  const value = document.createElement("dd");
  const note = document.createElement("dd");
  note.className = "faint";
  const bar = document.createElement("dd");
  bar.className = "bar";
  bar.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(NAMESPACE, "svg");
  line.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
  line.setAttribute("preserveAspectRatio", "none");
  line.setAttribute("aria-hidden", "true");
  line.append(document.createElementNS(NAMESPACE, "polyline"));
  group.append(term, value, note, bar, line);
  return group;
}

function fill(group, { name, value, note = "", bar = [], line }) {
  const [term, number, small, meter, chart] = group.children;
  [term.textContent, number.textContent, small.textContent] = [name, value, note];
  meter.hidden = !bar.length;
  meter.replaceChildren(...bar.map(([share, kind]) => {
    const part = document.createElement("span");
    part.className = kind;
    part.style.width = `${Math.min(100, 100 * share)}%`;
    return part;
  }));
  chart.toggleAttribute("hidden", !line);
  if (!line) return;
  const top = Math.max(...line, 1);
  const points = line.map((y, index) => `${KEPT - line.length + index},${96 - (92 * y) / top}`);
  chart.firstChild.setAttribute("points", points.join(" "));
}
