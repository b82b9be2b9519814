// The live view: one stream of totals a second, while it is looked at; rates are made here from the
// difference of two.
import {getJson, readEvents} from "./api.js";
import * as charts from "./charts.js";
import {byId, element, milliseconds, percent, short} from "./dom.js";
import {setUpTree} from "./tree.js";

const kSpanS = 300;
const kRetryMs = 3000;

let visible = false;
let stream = null;   // AbortController of the stream that is read
let retry = 0;
let last = null;     // totals of the event before
let points = [];     // what the charts show
let tree = null;
let curvePoints = -1;  // of the curves that are drawn; -1: none were asked for
const parts = {};

export function setUp() {
  const tiles = element("dl", {class: "tiles"});
  parts.tiles = new Map();
  for (const [name, title] of [
    ["generated", "Answer tokens/s"], ["prefilled", "Prompt tokens/s"], ["running", "Running"],
    ["waiting", "Waiting"], ["step", "Step"], ["reused", "Prompt reused"], ["accepted", "Drafts that stood"],
    ["machine", "Processor"],
  ]) {
    const value = element("dd", {}, "–");
    const note = element("dd", {class: "note"}, "");
    parts.tiles.set(name, {value, note});
    tiles.append(element("div", {}, element("dt", {}, title), value, note));
  }
  parts.speed = charts.lineChart("Tokens", "per second", [{label: "answers", colour: "--accent"},
                                                            {label: "prompts", colour: "--warn"}], kSpanS);
  parts.load = charts.lineChart("Requests", "", [{label: "running", colour: "--accent"},
                                                 {label: "waiting", colour: "--bad"}], kSpanS);
  parts.step = charts.lineChart("Time of a step", "ms", [{label: "step", colour: "--accent"}], kSpanS);
  parts.pools = element("div", {class: "bars"});
  parts.reuse = element("div", {});
  parts.drafts = element("div", {class: "bars"});
  parts.curves = element("section", {hidden: true, "aria-label": "Training"}, element("h2", {}, "Training"),
                         element("div", {class: "charts"}));
  parts.curveCharts = new Map();
  parts.notice = element("p", {class: "notice", role: "status", hidden: true});
  const card = (title, note, body) =>
    element("section", {class: "card", "aria-label": title}, element("h2", {}, title),
            element("p", {class: "note"}, note), body);
  tree = setUpTree();
  byId("live").append(
    parts.notice, tiles,
    element("div", {class: "charts"}, parts.speed.node, parts.load.node, parts.step.node),
    element("div", {class: "cards"},
            card("Memory of the cache", "Pages in use, kept for later requests, and free.", parts.pools),
            card("What prompts reused", "Tokens of admitted prompts since the start, and why a hit ended.", parts.reuse),
            card("Drafts by place", "Of the guesses tried at each place, those that stood.", parts.drafts)),
    parts.curves, tree.node);
  document.addEventListener("visibilitychange", follow);
}

export function setVisible(shown) {
  visible = shown;
  follow();
}

export function restart() {
  close();
  follow();
}

export function recolour() {
  charts.recolour();
}

function close() {
  clearTimeout(retry);
  stream?.abort();
  stream = null;
  last = null;
  curvePoints = -1;  // the next stream may be that of another run
}

function follow() {
  const wanted = visible && !document.hidden;
  tree?.setVisible(wanted);
  if (!wanted) {
    close();
  } else if (!stream) {
    read();
  }
}

function notice(words) {
  parts.notice.hidden = !words;
  parts.notice.textContent = words;
}

async function read() {
  const mine = new AbortController();
  stream = mine;
  let words = "The server has ended the stream.";
  try {
    await readEvents("/live", {signal: mine.signal}, (data) => {
      const now = JSON.parse(data);
      notice(now.late_step_s > 0 ? `A step has not ended for ${Math.round(now.late_step_s)} s.` : "");
      take(now);
    });
  } catch (error) {
    if (error.name === "AbortError") {
      return;
    }
    words = error.message;
  }
  if (stream === mine) {
    close();
    notice(`${words} Trying again …`);
    retry = setTimeout(follow, kRetryMs);
  }
}

function take(now) {
  const rates = last && now.time_s > last.time_s ? ratesOf(last, now) : {};
  last = now;
  points.push({time_s: now.time_s, rates, running: now.running, waiting: now.waiting});
  points = points.filter((point) => point.time_s > now.time_s - kSpanS && point.time_s <= now.time_s);
  showTiles(now, rates);
  const line = (values) => points.map((point) => ({age_s: point.time_s - now.time_s, values: values(point)}));
  parts.speed.show(line((point) => [point.rates.generated, point.rates.prefilled]));
  parts.load.show(line((point) => [point.running, point.waiting]));
  parts.step.show(line((point) => [point.rates.stepMs]));
  showPools(now);
  showReuse(now.cache);
  showDrafts(now.drafts);
  if (now.curve_points !== curvePoints) {
    curvePoints = now.curve_points;
    showCurves();
  }
}

function ratesOf(before, now) {
  const seconds = now.time_s - before.time_s;
  const steps = now.steps - before.steps;
  return {
    generated: (now.generated_tokens - before.generated_tokens) / seconds,
    prefilled: (now.prefilled_tokens - before.prefilled_tokens) / seconds,
    stepMs: steps > 0 ? 1000 * (now.step_s - before.step_s) / steps : NaN,
    schedulingUs: steps > 0 ? 1e6 * (now.scheduling_s - before.scheduling_s) / steps : NaN,
    cpu: (now.process.cpu_s - before.process.cpu_s) / seconds,
  };
}

function tile(name, value, note = "") {
  const {value: big, note: small} = parts.tiles.get(name);
  big.textContent = value;
  small.textContent = note;
}

function showTiles(now, rates) {
  tile("generated", short(rates.generated ?? NaN), `${short(now.generated_tokens)} in all`);
  tile("prefilled", short(rates.prefilled ?? NaN), `${short(now.prefilled_tokens)} in all`);
  tile("running", String(now.running), `of ${now.slots}, ${short(now.used_tokens)} tokens`);
  tile("waiting", String(now.waiting), now.paused ? "paused" : now.state);
  tile("step", milliseconds(rates.stepMs ?? NaN),
       Number.isFinite(rates.schedulingUs) ? `${short(rates.schedulingUs)} µs of it planning` : `${short(now.steps)} so far`);
  const cache = now.cache;
  tile("reused", cache ? percent(cache.cached_tokens / cache.prompt_tokens) : "–",
       cache ? `of ${short(cache.prompt_tokens)} tokens` : "no shared cache");
  const drafts = now.drafts;
  tile("accepted", percent(sum(drafts.stood) / sum(drafts.tried)),
       drafts.verify_steps > 0 ? `${(1 + sum(drafts.stood) / drafts.verify_steps).toFixed(2)} tokens a step` : "no drafts yet");
  tile("machine", Number.isFinite(rates.cpu) ? `${rates.cpu.toFixed(2)} cores` : "–",
       `${short(now.process.resident_bytes / 1048576)} MiB resident`);
}

function sum(list) {
  return list.reduce((total, value) => total + value, 0);
}

function bar(label, pieces, words) {
  const track = element("span", {class: "track"});
  for (const [share, kind] of pieces) {
    const piece = element("span", {class: `piece ${kind}`});
    piece.style.width = `${100 * Math.min(1, share || 0)}%`;
    track.append(piece);
  }
  return element("div", {class: "bar-row"}, element("span", {}, label), track,
                 element("span", {class: "words"}, words));
}

function showPools(now) {
  const rows = now.pools.map((pool) =>
    bar(pool.name, [[pool.used / pool.total, "used"], [pool.kept / pool.total, "kept"]],
        `${short(pool.used)} used, ${short(pool.kept)} kept of ${short(pool.total)}`));
  parts.pools.replaceChildren(...(rows.length > 0 ? rows : [element("p", {class: "note"}, "Each request has memory of its own.")]));
}

const kReasons = {
  none: "whole hit",
  no_point: "no place to go on",
  window_gone: "window rows given up",
  limit: "last token is always run",
};

function showReuse(cache) {
  if (!cache) {
    parts.reuse.replaceChildren(element("p", {class: "note"}, "Nothing is shared without a cache."));
    return;
  }
  const row = (name, hits, lost) => element("tr", {}, element("th", {scope: "row"}, name),
                                            element("td", {}, short(hits)), element("td", {}, lost === null ? "" : short(lost)));
  parts.reuse.replaceChildren(
    element("table", {},
            element("thead", {}, element("tr", {}, element("th", {scope: "col"}, "Hit"),
                                         element("th", {scope: "col"}, "Prompts"),
                                         element("th", {scope: "col"}, "Tokens lost"))),
            element("tbody", {},
                    row("went on behind live pages", cache.hits_live, null),
                    row("went on at a resume point", cache.hits_point, null),
                    ...Object.entries(cache.cut).map(([name, {hits, lost_tokens: lost}]) =>
                      row(kReasons[name] || name, hits, lost)))),
    element("p", {class: "note"}, `${short(cache.stored_pages)} pages stored, ${short(cache.evicted_pages)} given up; ` +
            `${short(cache.captures)} resume points made, ${short(cache.evicted_points)} given up.`));
}

function showDrafts(drafts) {
  const rows = drafts.tried.map((tried, i) => [tried, drafts.stood[i], i]).filter(([tried]) => tried > 0)
      .map(([tried, stood, i]) => bar(`place ${i + 1}`, [[stood / tried, "used"]], `${percent(stood / tried)} of ${short(tried)}`));
  parts.drafts.replaceChildren(...(rows.length > 0 ? rows : [element("p", {class: "note"}, "No drafts were tried.")]));
}

/// What other parts of the program report over their steps, such as the reward of a training run.
async function showCurves() {
  let curves = {};
  try {
    ({curves} = await getJson("/live/curves"));
  } catch {
    curvePoints = -1;  // asked for again with the next event
    return;
  }
  parts.curves.hidden = Object.keys(curves).length === 0;
  for (const [name, chart] of parts.curveCharts) {
    if (!(name in curves)) {
      chart.node.remove();
      parts.curveCharts.delete(name);
    }
  }
  for (const [name, points] of Object.entries(curves)) {
    if (!parts.curveCharts.has(name)) {
      const chart = charts.stepChart(name);
      parts.curveCharts.set(name, chart);
      parts.curves.lastChild.append(chart.node);
    }
    parts.curveCharts.get(name).show(points);
  }
}
