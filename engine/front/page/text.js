// What a model says, shown as text: fenced blocks as code, the rest as paragraphs. Nothing of it is ever read as HTML.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;

/** `text` as blocks `{kind: "code" | "prose", text, language}`. A fence that is still open runs to the end. */
export function blocksOf(text) {
  const blocks = [];
  let fence = null;
  let lines = [];
  const close = (kind, language = "") => {
    if (kind === "code" || lines.length) blocks.push({ kind, text: lines.join("\n"), language });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const match = FENCE.exec(line);
    if (fence === null && match) {
      close("prose");
      fence = { mark: match[1], language: match[2] };
    } else if (fence !== null && line.trim().startsWith(fence.mark) && !line.trim().replaceAll(fence.mark[0], "")) {
      close("code", fence.language);
      fence = null;
    } else if (fence === null && !line.trim()) {
      close("prose");
    } else {
      lines.push(line);
    }
  }
  close(fence === null ? "prose" : "code", fence?.language);
  return blocks;
}

/** Make the children of `node` those blocks. Blocks that stand stay as they are, and so does a selection in them. */
export function show(node, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, index) => {
    let element = node.children[index];
    if (element?.dataset.kind !== block.kind) {
      const fresh = blank(block);
      if (element) element.replaceWith(fresh);
      else node.append(fresh);
      element = fresh;
    }
    const holder = block.kind === "code" ? element.firstChild : element;
    if (holder.textContent !== block.text) holder.textContent = block.text;
    if (block.language) element.dataset.language = block.language;
    else delete element.dataset.language;
  });
  while (node.children.length > blocks.length) node.lastChild.remove();
}

function blank({ kind }) {
  const element = document.createElement(kind === "code" ? "pre" : "p");
  element.dataset.kind = kind;
  if (kind === "code") {
    element.tabIndex = 0; // it scrolls sideways, by keyboard too
    element.append(document.createElement("code"));
  }
  return element;
}
