// The model's text as elements: paragraphs, headings, lists, code. Nothing of it is ever taken for
// HTML, and nothing in it is loaded.
import {element} from "./dom.js";

/// Shows `text` in `host`. Only blocks that changed since the last call are made anew.
export function show(host, text) {
  const blocks = split(text);
  const shown = host.blocks || [];
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same].source === blocks[same].source &&
         shown[same].kind === blocks[same].kind) {
    ++same;
  }
  while (host.childNodes.length > same) {
    host.lastChild.remove();
  }
  for (const block of blocks.slice(same)) {
    host.append(make(block));
  }
  host.blocks = blocks;
}

function split(text) {
  const blocks = [];
  let open = null;  // the block that the next line may belong to
  let fence = null;
  for (const line of text.split("\n")) {
    const mark = line.match(/^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/);
    if (fence) {
      if (mark && mark[2] === "" && mark[1][0] === fence.mark[0] && mark[1].length >= fence.mark.length) {
        fence = null;
      } else {
        fence.lines.push(line);
      }
      continue;
    }
    if (mark) {
      fence = {kind: "code", mark: mark[1], language: mark[2], lines: []};
      blocks.push(fence);
      open = null;
      continue;
    }
    const kind = kindOf(line);
    if (kind === "blank") {
      open = null;
    } else if (kind === "heading") {
      blocks.push({kind, lines: [line]});
      open = null;
    } else if (open && (open.kind === kind || (open.kind !== "text" && /^\s+/.test(line)))) {
      open.lines.push(line);
    } else {
      open = {kind, lines: [line]};
      blocks.push(open);
    }
  }
  for (const block of blocks) {
    block.source = (block.language || "") + block.lines.join("\n");
  }
  return blocks;
}

function kindOf(line) {
  if (/^\s*$/.test(line)) {
    return "blank";
  }
  if (/^#{1,6}\s/.test(line)) {
    return "heading";
  }
  if (/^\s*[-*+]\s/.test(line)) {
    return "bullets";
  }
  return /^\s*\d{1,4}[.)]\s/.test(line) ? "numbers" : "text";
}

function make(block) {
  const lines = block.lines;
  switch (block.kind) {
    case "code":
      return element("pre", {tabindex: "0", "aria-label": `Code ${block.language || ""}`.trim(), role: "group"},
                     element("code", {}, lines.join("\n")));
    case "heading":
      return element("h3", {}, ...inline(lines[0].replace(/^#+\s*/, "")));
    case "bullets":
    case "numbers": {
      const items = [];
      for (const line of lines) {
        const item = line.match(/^\s*(?:[-*+]|\d+[.)])\s+(.*)$/);
        if (item || items.length === 0) {
          items.push(item ? item[1] : line);
        } else {
          items[items.length - 1] += ` ${line.trim()}`;
        }
      }
      const list = element(block.kind === "numbers" ? "ol" : "ul");
      if (block.kind === "numbers") {
        list.start = Number(lines[0].match(/\d+/)[0]);
      }
      list.append(...items.map((item) => element("li", {}, ...inline(item))));
      return list;
    }
    default:
      return element("p", {}, ...inline(lines.join("\n")));
  }
}

function inline(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(/`([^`\n]+)`|\*\*([^*\n]+)\*\*/g)) {
    parts.push(text.slice(at, found.index));
    parts.push(found[1] !== undefined ? element("code", {}, found[1]) : element("strong", {}, found[2]));
    at = found.index + found[0].length;
  }
  parts.push(text.slice(at));
  return parts.filter((part) => part !== "");
}
