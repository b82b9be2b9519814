// The side panel: what is sent with every request. Kept in this browser.
import {setKey} from "./api.js";
import {byId, element} from "./dom.js";
import {read, write} from "./store.js";

const kExampleTools = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city today.",
    parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]},
  },
}];

const kGroups = [
  ["Model", [
    {name: "model", label: "Model", options: []},
    {name: "system", label: "System message", rows: 3},
  ]],
  ["Thinking", [
    {name: "effort", label: "Effort", options: [["", "default"], ["off", "off"], ["low", "low"],
                                                 ["high", "high"], ["max", "max"]], half: true},
    {name: "budget", label: "Most tokens", number: {min: 1, step: 1}, half: true},
  ]],
  ["Sampling", [
    {name: "temperature", label: "Temperature", number: {min: 0, step: 0.1}, half: true},
    {name: "top_p", label: "Top p", number: {min: 0, max: 1, step: 0.05}, half: true},
    {name: "top_k", label: "Top k", number: {min: -1, step: 1}, half: true},
    {name: "min_p", label: "Min p", number: {min: 0, max: 1, step: 0.01}, half: true},
    {name: "max_tokens", label: "Longest answer", number: {min: 1, step: 1}, half: true},
    {name: "seed", label: "Seed", number: {step: 1}, half: true},
    {name: "max_drafts", label: "Most drafts", number: {min: 0, step: 1}, half: true},
    {name: "stop", label: "Stop strings, one a line", rows: 1},
  ]],
  ["Tools, answered by hand", [{name: "tools", label: "JSON list of functions", rows: 4, code: true}]],
  ["Access", [{name: "key", label: "API key", secret: true}]],
];

let values = {};

/// Fills the form. `changed` is called with the name of a value that was changed.
export function setUp(changed) {
  values = read("settings", {});
  setKey(values.key || "");
  const form = byId("settings-form");
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const [title, fields] of kGroups) {
    const halves = element("div", {class: "pair"});
    const group = element("fieldset", {}, element("legend", {}, title));
    for (const field of fields) {
      if (field.half && halves.childNodes.length === 0) {
        group.append(halves);
      }
      (field.half ? halves : group).append(fieldOf(field, changed));
    }
    form.append(group);
  }
  byId("set-tools").after(element("button", {type: "button", class: "quiet", onclick: () => {
    take("tools", JSON.stringify(kExampleTools, null, 1), changed);
    byId("set-tools").value = values.tools;
    checkTools();
  }}, "Put in an example"));
  form.append(element("button", {type: "button", onclick: () => {
    for (const name of Object.keys(values)) {
      if (name !== "key" && name !== "model") {
        take(name, "", changed);
        byId(`set-${name}`).value = "";
      }
    }
    checkTools();
  }}, "Back to the defaults"));
  checkTools();
}

function take(name, value, changed) {
  values[name] = value;
  write("settings", values);
  if (name === "key") {
    setKey(value);
  }
  changed(name);
}

function fieldOf(field, changed) {
  const id = `set-${field.name}`;
  const common = {id, name: field.name, onchange: () => {
    take(field.name, input.value.trim(), changed);
    checkTools();
  }};
  let input;
  if (field.options) {
    input = element("select", common, ...field.options.map(([value, label]) => element("option", {value}, label)));
  } else if (field.rows) {
    input = element("textarea", {...common, rows: field.rows, class: field.code ? "code" : null,
                                 spellcheck: field.code ? "false" : null});
  } else if (field.number) {
    input = element("input", {...common, type: "number", ...field.number, placeholder: "default", inputmode: "decimal"});
  } else {
    input = element("input", {...common, type: field.secret ? "password" : "text", autocomplete: "off"});
  }
  input.value = values[field.name] ?? "";
  return element("div", {class: "field"}, element("label", {for: id}, field.label), input);
}

/// What the server serves; keeps the choice if it is still there.
export function setModels(names) {
  const select = byId("set-model");
  select.replaceChildren(...names.map((name) => element("option", {value: name}, name)));
  values.model = names.includes(values.model) ? values.model : names[0];
  select.value = values.model;
}

export function model() {
  return values.model || "";
}

function tools() {
  if (!values.tools) {
    return null;
  }
  const list = JSON.parse(values.tools);
  if (!Array.isArray(list)) {
    throw new Error("must be a list");
  }
  return list;
}

function checkTools() {
  const input = byId("set-tools");
  byId("tools-fault")?.remove();
  input.removeAttribute("aria-invalid");
  input.removeAttribute("aria-describedby");
  try {
    tools();
  } catch (error) {
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", "tools-fault");
    input.after(element("p", {id: "tools-fault", class: "fault"}, `Not sent: ${error.message}`));
  }
}

/// The fields of a chat request besides the messages.
export function requestFields() {
  const body = {model: values.model};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "max_drafts"]) {
    if (values[name] !== undefined && values[name] !== "") {
      body[name] = Number(values[name]);
    }
  }
  if (values.stop) {
    body.stop = values.stop.split("\n").filter((line) => line !== "");
  }
  if (values.effort === "off") {
    body.thinking = {type: "disabled"};
  } else if (values.effort) {
    body.reasoning_effort = values.effort;
  }
  if (values.budget && values.effort !== "off") {
    body.thinking = {type: "enabled", budget_tokens: Number(values.budget)};
  }
  try {
    const list = tools();
    if (list && list.length > 0) {
      body.tools = list;
    }
  } catch {
    // Shown beside the field; the rest is sent without.
  }
  return body;
}

export function systemMessage() {
  return values.system || "";
}
