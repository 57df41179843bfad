// Where the page begins: the key, the list of models, and the two halves, which know nothing of each other.

import * as chat from "./chat.js";
import * as machine from "./machine.js";
import { ask, keepKey, Problem, whenKeyIsWanted } from "./server.js";

const byId = (id) => document.getElementById(id);
const picker = byId("model");
const chosen = () => picker.value;

let keyWanted = null; // one question at a time, whoever needs the answer

whenKeyIsWanted((again) => {
  keyWanted ??= new Promise((given) => {
    byId("key-wrong").textContent = again ? "That was another one." : "";
    byId("key-dialog").showModal();
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      keepKey(byId("key").value);
      byId("key").value = "";
      keyWanted = null;
      byId("key-dialog").close();
      given();
    };
  });
  return keyWanted;
});
byId("key-dialog").addEventListener("close", () => {
  if (keyWanted !== null) byId("key-dialog").showModal(); // without a key there is nothing to go on with
});

const wide = matchMedia("(min-width: 60rem)");
const openWhereThereIsRoom = () => { byId("machine").open = wide.matches; };
wide.addEventListener("change", openWhereThereIsRoom);
openWhereThereIsRoom();
if (wide.matches) byId("message").focus(); // elsewhere it would bring up a keyboard over half of the page

async function listModels() {
  const [{ data }, { models }] = await Promise.all([ask("/v1/models"), ask("/machine")]);
  const loaded = models.map((model) => model.name);
  picker.replaceChildren(...data.map(({ id }) => new Option(id, id, false, id === loaded[0])));
  if (!data.length) byId("problem").textContent = "There is no model yet. `freetoken pull demo` fetches a small one.";
}

chat.begin(chosen);
machine.watch(chosen);
listModels().catch((error) => {
  if (!(error instanceof Problem)) throw error;
  byId("problem").textContent = error.message;
});
