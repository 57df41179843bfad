// Requests to the server that this page came from. A key, where one is wanted, lives as long as the tab.

const KEY = "freetoken.key";

/** A failure that is told to the person as the sentence that it is. */
export class Problem extends Error {}

/** Ask the person for the key, again if one was wrong; set by `app.js`. Resolves once there is one. */
let askForKey = async () => {};
export const whenKeyIsWanted = (ask) => { askForKey = ask; };
export const keepKey = (key) => sessionStorage.setItem(KEY, key);

async function send(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The server does not answer. Is it still running?");
    }
    if (answer.status === 401) {
      if (key === sessionStorage.getItem(KEY)) await askForKey(key !== null);
    } else if (answer.ok) {
      return answer;
    } else {
      throw new Problem(sentence(await answer.json().catch(() => ({}))));
    }
  }
}

function sentence({ error } = {}) {
  const { message = "The server failed.", remedy = "" } = error ?? {};
  return remedy && !message.endsWith(remedy) ? `${message} ${remedy}` : message;
}

/** The JSON object at `path`; with a `body`, the answer to posting it. */
export async function ask(path, body) {
  return (await send(path, body === undefined ? {} : posting(body))).json();
}

const posting = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

/** The server-sent events that answer `body`: `{data}` with an object, or `{comment}`. Aborting `signal` ends it. */
export async function* events(path, body, signal) {
  const answer = await send(path, { ...posting(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith(": ")) yield { comment: line.slice(2) };
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const data = JSON.parse(line.slice(6));
      if (data.error) throw new Problem(sentence(data));
      yield { data };
    }
  }
}
