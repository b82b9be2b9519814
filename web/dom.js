// Making elements. Text always goes in as text, never as markup.

/// element("p", {class: "note", onclick: f}, "text", child)
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const kSvg = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(kSvg, tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      node.addEventListener(name.slice(2), value);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value);
    }
  }
}

export function byId(id) {
  return document.getElementById(id);
}

/// 1234567 as 1.23 M; up to four figures as they are.
export function short(number) {
  if (!Number.isFinite(number)) {
    return "–";
  }
  for (const [size, mark] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(number) >= size) {
      const scaled = number / (mark === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)} ${mark}`;
    }
  }
  if (Math.abs(number) < 1) {
    return String(Number(number.toPrecision(2)));
  }
  return number >= 100 || Number.isInteger(number) ? String(Math.round(number)) : number.toFixed(1);
}

export function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %` : "–";
}

export function milliseconds(ms) {
  if (!Number.isFinite(ms)) {
    return "–";
  }
  if (ms >= 1000) {
    return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  }
  return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}
