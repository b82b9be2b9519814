// Lines over the last minutes, drawn by Chart.js.
import {element, short} from "./dom.js";

const kLeastSpanS = 60;
const charts = new Set();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/// `lines`: [{label, colour}] with the name of a colour of the page. Gives {node, show(points)},
/// where a point is {age_s, values} and ages are at most zero.
export function lineChart(title, unit, lines, span) {
  const canvas = element("canvas", {role: "img", "aria-label": title});
  const node = element("figure", {class: "chart"}, element("figcaption", {}, title, element("span", {}, unit)),
                       element("div", {class: "canvas"}, canvas));
  const chart = new Chart(canvas, {
    type: "line",
    data: {datasets: lines.map((line) => ({
      label: line.label, data: [], borderWidth: 1.6, pointRadius: 0, tension: 0, stepped: false, colour: line.colour,
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
        x: {type: "linear", min: -span, max: 0, ticks: {maxTicksLimit: 6, callback: (s) => (s === 0 ? "now" : `${s} s`)}},
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
  return {
    node,
    show(points) {
      chart.data.datasets.forEach((set, i) => {
        set.data = points.filter((point) => Number.isFinite(point.values[i]))
            .map((point) => ({x: point.age_s, y: point.values[i]}));
      });
      const age = points.length > 0 ? -points[0].age_s : 0;
      chart.options.scales.x.min = -Math.min(span, Math.max(kLeastSpanS, 30 * Math.ceil(age / 30)));
      const last = points[points.length - 1];
      canvas.setAttribute("aria-label", `${title}: ${lines.map((line, i) =>
        `${line.label} ${last ? short(last.values[i]) : "–"} ${unit}`).join(", ")}`);
      chart.update("none");
    },
  };
}

export function recolour() {
  charts.forEach((paint) => paint());
}
