// The cache tree: runs of pages that prompts share, drawn from left to right by depth. Every run is
// a button: arrow keys walk the tree, Enter shows what is below.
import {getJson} from "./api.js";
import {element, short, svg} from "./dom.js";

const kEveryMs = 4000;
const kRow = 26;
const kHeight = 16;
const kStep = 130;    // width of one depth of the drawing
const kGap = 22;      // between two depths

export function setUpTree() {
  let root = 0;
  let timer = 0;
  let shown = null;
  let chosen = null;   // page of the run that is looked at
  let isVisible = false;
  const words = element("p", {class: "note"}, "");
  const details = element("dl", {class: "details", "aria-live": "polite"});
  const drawing = svg("svg", {role: "group", "aria-label": "Cache tree"});
  const scroll = element("div", {class: "drawing"}, drawing);
  const up = element("button", {type: "button", hidden: true, onclick: () => go(0)}, "Whole tree");
  const again = element("button", {type: "button", onclick: () => look()}, "Look again");
  const legend = element("ul", {class: "legend", "aria-label": "Signs"},
                         ...[["live", "with window rows: prompts go on right behind it"],
                             ["tombstone", "tombstone: its entries serve longer prefixes only"],
                             ["locked", "in use; the number counts its users"],
                             ["point", "resume point"]].map(([kind, text]) =>
                           element("li", {}, element("span", {class: `sign ${kind}`}), text)));
  const node = element("section", {class: "tree", "aria-label": "Prefix cache"},
                       element("div", {class: "row"}, element("h2", {}, "Prefix cache"), up, again),
                       words, scroll, legend, details);

  async function look() {
    clearTimeout(timer);
    try {
      shown = await getJson(`/live/tree?root=${root}`);
      draw();
    } catch (error) {
      if (root !== 0) {
        root = 0;  // it was given up meanwhile
      }
      words.textContent = error.message;
    }
    clearTimeout(timer);
    if (isVisible) {
      timer = setTimeout(look, kEveryMs);
    }
  }

  function go(page) {
    root = page;
    chosen = null;
    look();
  }

  function draw() {
    const runs = shown.runs;
    up.hidden = shown.root === 0;
    words.textContent = `${short(shown.num_pages)} pages of ${shown.page_tokens} tokens, ${short(shown.num_points)} resume points` +
      (shown.num_hidden > 0 ? `; ${short(shown.num_hidden)} branches are not drawn, the latest used are` : "");
    const places = place(runs);
    const depth = Math.max(0, ...places.map(({column}) => column + 1));
    const rows = Math.max(1, ...places.map(({row}) => row + 1));
    const width = depth * (kStep + kGap) + 40;
    drawing.setAttribute("width", width);
    drawing.setAttribute("height", rows * kRow + 8);
    drawing.replaceChildren(...runs.flatMap((run, i) => drawRun(run, places[i], places[run.parent])));
    const focusable = drawing.querySelector(`[data-page="${chosen}"]`) || drawing.querySelector(".run");
    focusable?.setAttribute("tabindex", "0");
    showDetails(runs.find((run) => run.first_page === chosen));
    scroll.hidden = runs.length === 0;
    if (runs.length === 0) {
      words.textContent = shown.has_cache ? "Nothing is kept yet." : "This server shares no cache.";
    }
  }

  /// Leaves get a row each, in order; a parent stands beside its first child.
  function place(runs) {
    const children = runs.map(() => []);
    const places = runs.map(() => ({column: 0, row: 0}));
    const roots = [];
    runs.forEach((run, i) => (run.parent < 0 ? roots : children[run.parent]).push(i));
    let row = 0;
    const visit = (i, column) => {
      places[i].column = column;
      places[i].row = row;
      children[i].forEach((child, nth) => {
        row += nth > 0 ? 1 : 0;
        visit(child, column + 1);
      });
    };
    roots.forEach((i, nth) => {
      row += nth > 0 ? 1 : 0;
      visit(i, 0);
    });
    return places;
  }

  function drawRun(run, {column, row}, parent) {
    const x = 6 + column * (kStep + kGap);
    const y = 6 + row * kRow;
    const width = Math.max(14, Math.min(kStep, 10 + 18 * Math.log2(1 + run.num_pages)));
    const parts = [];
    if (parent) {
      const fromX = 6 + parent.column * (kStep + kGap) + kStep;
      const fromY = 6 + parent.row * kRow + kHeight / 2;
      parts.push(svg("path", {class: "edge", d: `M${fromX} ${fromY}h${kGap / 2}V${y + kHeight / 2}H${x}`}));
    }
    const box = svg("rect", {x, y, width, height: kHeight, rx: 3});
    const group = svg("g", {
      class: `run ${run.is_live ? "live" : "tombstone"}${run.locks > 0 ? " locked" : ""}`,
      role: "button", tabindex: "-1", "data-page": run.first_page, "data-row": row, "data-column": column,
      "aria-label": say(run), "aria-pressed": String(run.first_page === chosen),
      onclick: () => choose(run), onkeydown: (event) => press(event, run),
    }, svg("title", {}, say(run)), box);
    if (run.locks > 0) {
      group.append(svg("text", {x: x + 5, y: y + kHeight - 4}, String(run.locks)));
    }
    run.points.slice(0, 6).forEach((_, i) => {
      const at = x + width - 2 - i * 8;
      group.append(svg("path", {class: "point", d: `M${at} ${y - 4}l4 4l-4 4l-4 -4z`}));
    });
    if (run.num_hidden > 0) {
      group.append(svg("text", {class: "more", x: x + width + 4, y: y + kHeight - 4}, `+${run.num_hidden}`));
    }
    if (column * (kStep + kGap) + width < kStep + column * (kStep + kGap) && run.num_children > 0) {
      parts.push(svg("path", {class: "edge", d: `M${x + width} ${y + kHeight / 2}H${x + kStep}`}));
    }
    return [...parts, group];
  }

  function say(run) {
    const end = run.begin_tokens + run.num_pages * shown.page_tokens;
    return `tokens ${run.begin_tokens} to ${end}, ${run.num_pages} ${run.num_pages === 1 ? "page" : "pages"}, ` +
      `${run.is_live ? "live" : "tombstone"}, ${run.locks} in use, ${run.points.length} resume points`;
  }

  function choose(run) {
    chosen = run.first_page;
    draw();
    drawing.querySelector(`[data-page="${chosen}"]`)?.focus();
  }

  function press(event, run) {
    const runs = shown.runs;
    const index = runs.indexOf(run);
    const siblings = runs.filter((other) => other.parent === run.parent);
    const at = siblings.indexOf(run);
    const next = {
      ArrowLeft: runs[run.parent],
      ArrowRight: runs.find((other) => other.parent === index),
      ArrowUp: siblings[at - 1],
      ArrowDown: siblings[at + 1],
    }[event.key];
    if (next) {
      event.preventDefault();
      choose(next);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(run);
    }
  }

  function showDetails(run) {
    if (!run) {
      details.replaceChildren();
      return;
    }
    const rows = [
      ["Tokens", `${run.begin_tokens} to ${run.begin_tokens + run.num_pages * shown.page_tokens} of every prompt here`],
      ["Pages", `${run.num_pages}, from page ${run.first_page} to ${run.last_page}`],
      ["Window", run.is_live ? `live, ${run.window_locks} readers` : "given up (tombstone)"],
      ["Users", `${run.locks} sequences and copies`],
      ["Last used", `${short(run.age)} uses of the cache ago`],
      ["Branches", `${run.num_children}${run.num_hidden > 0 ? `, ${run.num_hidden} of them not drawn` : ""}`],
      ["Block hash", run.hash],
      ...run.points.map((point) => ["Resume point", `at token ${point.position}, made at ${point.kind}` +
                                    (point.pins > 0 ? `, ${point.pins} copies read it` : "")]),
    ];
    details.replaceChildren(...rows.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    if (run.num_children > 0 && run.last_page !== shown.root) {
      details.append(element("div", {}, element("button", {type: "button", onclick: () => go(run.last_page)},
                                                "Draw from here")));
    }
  }

  return {
    node,
    setVisible(value) {
      isVisible = value;
      clearTimeout(timer);
      if (value) {
        look();
      }
    },
  };
}
