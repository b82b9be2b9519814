// Lines over the last minutes, drawn by Chart.js.
import {element, short} from "./dom.js";

const kLeastSpanS = 60;
const charts = new Set();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function makeChart(title, unit, lines, xAxis, pointRadius = 0) {
  const canvas = element("canvas", {role: "img", "aria-label": title});
  const node = element("figure", {class: "chart"}, element("figcaption", {}, title, element("span", {}, unit)),
                       element("div", {class: "canvas"}, canvas));
  const chart = new Chart(canvas, {
    type: "line",
    data: {datasets: lines.map((line) => ({
      label: line.label, data: [], borderWidth: 1.6, pointRadius, tension: 0, stepped: false, colour: line.colour,
    }))},
    options: {
      animation: false,
      parsing: false,
      normalized: true,
      responsive: true,
      maintainAspectRatio: false,
      interaction: {mode: "index", intersect: false},
      plugins: {
        legend: {display: lines.length > 1, position: "top", align: "end", labels: {boxWidth: 10, boxHeight: 2}},
        tooltip: {callbacks: {title: () => "", label: (item) => `${item.dataset.label}: ${short(item.parsed.y)} ${unit}`}},
      },
      scales: {
        x: {type: "linear", ...xAxis},
        y: {beginAtZero: true, suggestedMax: 1, ticks: {maxTicksLimit: 5, callback: (value) => short(value)}},
      },
    },
  });
  const paint = () => {
    chart.data.datasets.forEach((set) => {
      set.borderColor = colour(set.colour);
      set.backgroundColor = set.borderColor;
    });
    for (const axis of Object.values(chart.options.scales)) {
      axis.grid = {color: colour("--line")};
      axis.ticks.color = colour("--soft");
    }
    chart.options.plugins.legend.labels.color = colour("--soft");
    chart.update("none");
  };
  charts.add(paint);
  paint();
  const say = (values) => canvas.setAttribute("aria-label", `${title}: ${lines.map((line, i) =>
    `${line.label} ${values ? short(values[i]) : "–"} ${unit}`).join(", ")}`);
  return {chart, node, say};
}

/// `lines`: [{label, colour}] with the name of a colour of the page. Gives {node, show(points)},
/// where a point is {age_s, values} and ages are at most zero.
export function lineChart(title, unit, lines, span) {
  const {chart, node, say} = makeChart(title, unit, lines, {
    min: -span, max: 0, ticks: {maxTicksLimit: 6, callback: (s) => (s === 0 ? "now" : `${s} s`)}});
  return {
    node,
    show(points) {
      chart.data.datasets.forEach((set, i) => {
        set.data = points.filter((point) => Number.isFinite(point.values[i]))
            .map((point) => ({x: point.age_s, y: point.values[i]}));
      });
      const age = points.length > 0 ? -points[0].age_s : 0;
      chart.options.scales.x.min = -Math.min(span, Math.max(kLeastSpanS, 30 * Math.ceil(age / 30)));
      say(points[points.length - 1]?.values);
      chart.update("none");
    },
  };
}

/// One line over steps. Gives {node, show(points)} where a point is [step, value].
export function stepChart(title) {
  const {chart, node, say} = makeChart(title, "", [{label: title, colour: "--accent"}],
                                       {ticks: {maxTicksLimit: 6, precision: 0}}, 1.5);
  return {
    node,
    show(points) {
      chart.data.datasets[0].data = points.map(([x, y]) => ({x, y}));
      say(points.length > 0 ? [points[points.length - 1][1]] : undefined);
      chart.update("none");
    },
  };
}

export function recolour() {
  charts.forEach((paint) => paint());
}
