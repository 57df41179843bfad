// The conversation. It lives in this page alone and is sent whole with every message.

import { events, Problem } from "./server.js";
import { show } from "./text.js";

const byId = (id) => document.getElementById(id);
const log = byId("log");
const field = byId("message");

let turns = []; // {role, content, reasoning_content?}, as the server wants them
let running = null; // the AbortController of the answer that is being written

/** Wire the conversation up. `model()` is the name of the model to ask. */
export function begin(model) {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null && field.value.trim() && model()) answer(model(), field.value.trim());
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  field.addEventListener("input", fitField);
  byId("stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("clear").addEventListener("click", clear);
}

function clear() {
  running?.abort();
  setRunning(null);
  turns = [];
  log.replaceChildren();
  byId("problem").textContent = "";
  field.focus();
}

async function answer(model, text) {
  const asked = { role: "user", content: text };
  const history = [...turns, asked];
  const mine = message("user", text);
  const theirs = message("assistant", "");
  const said = { role: "assistant", content: "", reasoning_content: "" };
  const controller = new AbortController();
  setRunning(controller);
  field.value = "";
  fitField();
  scrollToEnd();
  let problem = "";
  let ending = null; // of an answer that came to its end
  try {
    ending = await write(model, history, said, theirs, controller.signal);
  } catch (error) {
    if (error instanceof Problem) problem = error.message;
    else if (error.name !== "AbortError") throw error;
  } finally {
    theirs.setAttribute("aria-busy", "false");
    if (log.contains(theirs)) {
      const saidAnything = said.content || said.reasoning_content;
      if (saidAnything || ending !== null) keep(asked, said, theirs, ending ?? (problem ? "Broken off." : "Stopped."));
      else takeBack(asked, mine, theirs);
      byId("problem").textContent = problem;
    }
    if (running === controller) setRunning(null);
  }
}

function keep(asked, said, element, ending) {
  const { reasoning_content, ...plain } = said;
  turns.push(asked, reasoning_content ? said : plain);
  const nothing = said.content || reasoning_content ? "" : "It said nothing. ";
  element.querySelector(".ending").textContent = nothing + ending;
}

/** Undo a turn in which nothing was said; the question returns to the field. */
function takeBack(asked, mine, theirs) {
  mine.remove();
  theirs.remove();
  field.value ||= asked.content;
  fitField();
}

/** Stream an answer into `said` and its element; the line to stand below it. */
async function write(model, messages, said, element, signal) {
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  const thinking = element.querySelector(".thinking");
  const progress = byId("progress");
  let cut = false;
  let statistics = {};
  let drawn = true;
  const draw = () => {
    drawn = true;
    const atEnd = isAtEnd();
    thinking.hidden = !said.reasoning_content.trim();
    thinking.querySelector("summary").textContent = said.content ? "Reasoning" : "Reasoning…";
    show(thinking.querySelector(".body"), said.reasoning_content);
    show(element.querySelector(":scope > .body"), said.content);
    if (atEnd) scrollToEnd();
  };
  progress.textContent = "Waiting for the model…";
  try {
    for await (const { data, comment } of events("/v1/chat/completions", body, signal)) {
      const reading = /^reading (\d+) of (\d+)$/.exec(comment);
      if (reading) progress.textContent = `Reading ${reading[1]} of ${reading[2]} tokens…`;
      if (!data) continue;
      statistics = data.statistics ?? statistics;
      const [choice] = data.choices;
      if (!choice) continue;
      said.content += choice.delta.content ?? "";
      said.reasoning_content += choice.delta.reasoning_content ?? "";
      if (said.content || said.reasoning_content) progress.textContent = "Answering…";
      cut ||= choice.finish_reason === "length";
      if (drawn) {
        drawn = false;
        requestAnimationFrame(draw);
      }
    }
  } finally {
    draw();
    progress.textContent = "";
  }
  return [...(cut ? ["Cut off, because the context is full."] : []), told(statistics)].join(" ");
}

function told({ generated_rate, first_token, reused_tokens, prompt_tokens }) {
  const parts = [];
  if (generated_rate !== undefined) parts.push(`${generated_rate.toFixed(generated_rate < 10 ? 2 : 1)} tokens/s`);
  if (first_token !== undefined) parts.push(`first after ${first_token.toFixed(2)} s`);
  if (prompt_tokens !== undefined) parts.push(`reused ${reused_tokens} of ${prompt_tokens} tokens`);
  return parts.join(" · ");
}

function message(role, text) {
  const element = document.createElement("article");
  element.className = role;
  element.setAttribute("aria-label", role === "user" ? "You" : "Model");
  if (role === "assistant") {
    element.setAttribute("aria-busy", "true");
    const thinking = document.createElement("details");
    thinking.className = "thinking";
    thinking.hidden = true;
    thinking.append(document.createElement("summary"), division("body"));
    element.append(thinking);
  }
  const body = division("body");
  show(body, text);
  element.append(body);
  if (role === "assistant") element.append(division("ending"));
  log.append(element);
  return element;
}

function division(name) {
  const element = document.createElement("div");
  element.className = name;
  return element;
}

function setRunning(controller) {
  const hadFocus = [byId("stop"), byId("send")].includes(document.activeElement);
  running = controller;
  byId("send").hidden = controller !== null;
  byId("stop").hidden = controller === null;
  if (controller !== null) byId("problem").textContent = "";
  if (hadFocus) (controller === null ? field : byId("stop")).focus();
}

function fitField() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
const scrollToEnd = () => { log.scrollTop = log.scrollHeight; };
