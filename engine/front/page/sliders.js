// Two sliders that move memory of a loaded model while it answers.

import { count, percent } from "./figures.js";
import { ask, Problem } from "./server.js";

const byId = (id) => document.getElementById(id);

const LEAST = 256; // tokens of context memory at the left end; steps are eighths of a doubling
const tokensAt = (value) => Math.round((LEAST * 2 ** (value / 8)) / 16) * 16;
const placeOf = (tokens) => Math.round(8 * Math.log2(Math.max(tokens, LEAST) / LEAST));

const SLIDERS = [
  {
    id: "kv-slider",
    body: (value) => ({ kv_tokens: tokensAt(value) }),
    label: (value) => `${count(tokensAt(value))} tokens`,
  },
  { id: "experts-slider", body: (value) => ({ experts: `${value}%` }), label: (value) => `${value} %` },
];
const SETTLED = 400; // milliseconds after the last move of a slider: arrow keys move it step by step

let placed = null; // the state whose sizes are shown
let touched = null; // the slider that a person moves, which must not jump under the hand

/** Let the sliders move memory of the model that `model()` names. */
export function beginSliders(model) {
  byId("sliders").addEventListener("submit", (event) => event.preventDefault());
  for (const { id, body, label } of SLIDERS) follow(byId(id), model, body, label);
}

function follow(holder, model, body, label) {
  const input = holder.querySelector("input");
  let timer = 0;
  input.addEventListener("input", () => {
    touched = input;
    holder.querySelector("output").textContent = label(input.valueAsNumber);
    clearTimeout(timer);
  });
  input.addEventListener("change", () => {
    const name = model();
    clearTimeout(timer);
    timer = setTimeout(() => move(name, body(input.valueAsNumber)), SETTLED);
  });
  input.addEventListener("blur", () => { touched = null; });
}

async function move(model, sizes) {
  const told = byId("moved");
  told.className = "";
  told.textContent = "Moving…";
  try {
    const { after, seconds, notes } = await ask("/machine/resize", { model, ...sizes });
    if (placed.name === model) placed = { ...placed, ...after };
    told.textContent = [`Moved in ${(1000 * seconds).toFixed(1)} ms.`, ...notes].join(" ");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    told.className = "refused";
    told.textContent = error.message;
  } finally {
    touched = null;
    placeSliders(placed);
  }
}

/** Show the sizes that a model has. */
export function placeSliders(state) {
  placed = state;
  byId("sliders").hidden = false;
  const most = placeOf(Math.max(4 * state.context_limit, state.kv_tokens));
  place("kv-slider", placeOf(state.kv_tokens), most, `${count(state.kv_tokens)} tokens`);
  byId("experts-slider").hidden = state.experts === null;
  if (state.experts !== null) place("experts-slider", Math.round(100 * state.experts), 100, percent(state.experts));
}

function place(id, value, most, text) {
  const holder = byId(id);
  const input = holder.querySelector("input");
  if (input === touched) return;
  input.max = most;
  input.value = value;
  holder.querySelector("output").textContent = text;
  input.setAttribute("aria-valuetext", text);
}
