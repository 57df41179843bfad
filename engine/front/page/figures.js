// From counters to what a person reads: figures of a model, out of samples of it. Nothing here touches the page.

export const KEPT = 90; // samples of a model, and points of a line
const WINDOW = 3000; // milliseconds of which a rate is the mean

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
export const count = (number) => Math.round(number).toLocaleString("en");

/** `amount` with the prefix that leaves one to three digits before the point. */
export function scaled(amount, unit, base = 1000) {
  const prefixes = base === 1024 ? ["", "Ki", "Mi", "Gi", "Ti"] : ["", "k", "M", "G", "T"];
  let step = 0;
  while (Math.abs(amount) >= base && step < prefixes.length - 1) {
    amount /= base;
    step += 1;
  }
  return `${amount.toFixed(step && amount < 100 ? 1 : 0)} ${prefixes[step]}${unit}`;
}

/** What the counters say of the last seconds: `tokens` a second (undefined from one sample), and how each changed. */
export function rates(kept) {
  const now = kept.at(-1);
  const then = kept.findLast(({ at }) => now.at - at >= WINDOW) ?? kept[0];
  const change = {};
  for (const name in now.totals) change[name] = now.totals[name] - (then.totals[name] ?? 0);
  const seconds = (now.at - then.at) / 1000;
  return { tokens: seconds ? change.generated_tokens / seconds : undefined, change, busy: change.steps > 0 };
}

/** The figures of a model: `{name, value, note, bar, line}`, the last two optional. `line` is of the speeds of late. */
export function figuresOf(kept, line) {
  const { state, totals } = kept.at(-1);
  const { tokens, change, busy } = rates(kept);
  const over = busy ? change : totals; // an idle machine shows what it did until now
  const speed = tokens === undefined ? "…" : tokens.toFixed(tokens && tokens < 10 ? 1 : 0);
  const done = `${count(totals.generated_tokens)} so far, ${requests(totals)}`;
  const figures = [{ name: "Speed", value: `${speed} tokens/s`, note: done, line }];
  const routed = over.hits + over.misses;
  if (routed > 0) {
    const hit = over.hits / routed;
    figures.push({ name: "Hit rate", value: percent(hit), note: "of routed experts", bar: [[hit, "hit"]] });
  }
  if (over.misses > 0) {
    figures.push({ name: "Misses", value: `${count(over.fills)} filled, ${count(over.cpu_experts)} computed`,
      note: `${(over.misses / over.plans).toFixed(1)} a layer and step`,
      bar: [[over.fills / over.misses, "filled"], [over.cpu_experts / over.misses, "computed"]] });
  }
  for (const [name, bytes, seconds, note] of [
    ["Link", over.link_bytes, over.link_seconds, "experts to the device"],
    ["Memory", over.host_bytes, over.host_seconds, "experts on the CPU"],
    ...(state.device === "cpu" ? [["Memory", over.read_bytes, over.step_seconds, "weights read"]] : []),
  ]) {
    if (bytes > 0 && seconds > 0) figures.push({ name, value: scaled(bytes / seconds, "B/s"), note });
  }
  figures.push({ name: "Context memory",
    value: `${count(totals.kv_tokens_held)} of ${count(state.kv_tokens)} tokens`,
    note: `${count(totals.kv_tokens_cached)} more kept for reuse, ${scaled(state.kv_bytes, "B", 1024)}`,
    bar: [[totals.kv_tokens_held / state.kv_tokens, "held"], [totals.kv_tokens_cached / state.kv_tokens, "kept"]] });
  if (state.expert_slots !== null) {
    figures.push({ name: "Experts on the device", value: `${count(state.expert_slots)} slots`,
      note: `${percent(state.experts)} of all experts, ${scaled(state.expert_bytes, "B", 1024)}`,
      bar: [[state.experts, "held"]] });
  }
  return figures;
}

/** Of what time the figures are, and by whose clock. */
export function spanOf(kept) {
  const { state: { work }, totals } = kept.at(-1);
  const clock = work?.clock && totals.plans > 0 ? `; link and memory by the virtual clock of ${work.clock}` : "";
  return `${rates(kept).busy ? "Of the last seconds" : "Since the model was loaded"}${clock}`;
}

function requests({ active, waiting }) {
  if (!active && !waiting) return "idle";
  return `${active} answering${waiting ? `, ${waiting} waiting` : ""}`;
}
