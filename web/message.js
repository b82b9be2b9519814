// One message as it stands in the conversation: who, thinking, text, calls, figures, what to do.
import {element, milliseconds, percent, short} from "./dom.js";
import {show} from "./text.js";

/// `act` has edit(text), retry(), answerCalls(results). Gives {node, update()}.
export function messageView(message, act) {
  if (message.role === "user") {
    return userView(message, act);
  }
  return message.role === "tool" ? resultView(message) : answerView(message, act);
}

function quiet(label, onclick) {
  return element("button", {type: "button", class: "quiet", onclick}, label);
}

function userView(message, act) {
  const body = element("div", {class: "body"}, message.content);
  const edit = quiet("Edit", () => {
    const field = element("textarea", {rows: Math.min(12, message.content.split("\n").length + 1),
                                       "aria-label": "Message"});
    field.value = message.content;
    const close = () => {
      form.replaceWith(body);
      edit.focus();
    };
    const form = element("form", {class: "edit", onsubmit: (event) => {
      event.preventDefault();
      if (field.value.trim()) {
        act.edit(field.value.trim());
      }
    }}, field, element("div", {class: "row"},
                       element("button", {class: "main", type: "submit"}, "Send again"),
                       element("button", {type: "button", onclick: close}, "Cancel")));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
    });
    body.replaceWith(form);
    field.focus();
  });
  const node = element("article", {class: "message user", "aria-label": "You"},
                       element("div", {class: "who"}, element("h2", {}, "You"),
                               element("span", {class: "actions"}, edit)), body);
  return {node, update() {}};
}

function resultView(message) {
  const node = element("article", {class: "message tool", "aria-label": `Result of ${message.name}`},
                       element("div", {class: "who"}, element("h2", {}, `Result of ${message.name}`)),
                       element("pre", {tabindex: "0", role: "group", "aria-label": "Result"}, message.content));
  return {node, update() {}};
}

function answerView(message, act) {
  const thinkingText = element("div", {class: "text"});
  const thinkingTitle = element("summary", {});
  const thinking = element("details", {class: "thinking", hidden: true}, thinkingTitle, thinkingText);
  const text = element("div", {class: "text"});
  const calls = element("div", {});
  const problem = element("div", {class: "problem", hidden: true, role: "alert"});
  const figures = element("dl", {class: "figures", hidden: true});
  const actions = element("span", {class: "actions"});
  const node = element("article", {class: "message answer", "aria-label": "Answer"},
                       element("div", {class: "who"}, element("h2", {}, "Answer"), actions),
                       element("div", {class: "body"}, thinking, text, calls, problem, figures));
  let touched = false;  // the fold was opened or closed by hand
  thinkingTitle.addEventListener("click", () => {
    touched = true;
  });

  const update = () => {
    const reasoning = message.reasoning || "";
    const content = message.content || "";
    node.classList.toggle("answering", Boolean(message.running));
    node.classList.toggle("waiting", Boolean(message.running) && !reasoning && !content && !message.calls?.length);
    thinking.hidden = reasoning === "";
    if (reasoning) {
      const goesOn = message.running && !content && !message.calls?.length;
      thinkingTitle.textContent = goesOn ? "Thinking …" : thoughtFor(message);
      if (!touched) {
        thinking.open = Boolean(goesOn);
      }
      show(thinkingText, reasoning);
    }
    show(text, content);
    if (!message.running) {
      finish();
    }
  };

  const finish = () => {
    calls.replaceChildren(...callForms(message, act));
    problem.hidden = !message.error;
    if (message.error) {
      const {status, message: words} = message.error;
      problem.replaceChildren(element("p", {}, status ? `${words} (${status})` : words));
    }
    const rows = figuresOf(message);
    figures.hidden = rows.length === 0;
    figures.replaceChildren(...rows.map(([name, value, title]) =>
      element("div", {title}, element("dt", {}, name), element("dd", {}, value))));
    actions.replaceChildren(
      ...(message.content ? [quiet("Copy", (event) => copy(event.currentTarget, message.content))] : []),
      quiet("Retry", act.retry));
  };
  update();
  return {node, update};
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 1500);
}

function thoughtFor(message) {
  const tokens = message.figures?.reasoning;
  return tokens ? `Thought for ${tokens} tokens` : "Thoughts";
}

/// A card per call; while they are open, with a field for the result of each.
function callForms(message, act) {
  if (!message.calls?.length) {
    return [];
  }
  const fields = [];
  const cards = message.calls.map((call, index) => {
    const card = element("div", {class: "call", role: "group", "aria-label": `Call ${index + 1}: ${call.name}`},
                         element("h3", {}, call.name),
                         element("pre", {tabindex: "0", role: "group", "aria-label": "Arguments"},
                                 pretty(call.arguments)));
    if (message.open) {
      const field = element("textarea", {rows: 2, id: `result-${call.id}-${index}`, placeholder: "what the tool gives"});
      fields.push(field);
      card.append(element("label", {for: field.id}, "Result"), field);
    }
    return card;
  });
  if (!message.open) {
    return cards;
  }
  const form = element("form", {class: "results", onsubmit: (event) => {
    event.preventDefault();
    act.answerCalls(fields.map((field) => field.value));
  }}, ...cards, element("div", {class: "row"},
                        element("button", {class: "main", type: "submit"}, "Send results")));
  return [form];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function figuresOf(message) {
  const f = message.figures;
  if (!f) {
    return [];
  }
  const rows = [];
  if (f.firstMs !== undefined) {
    rows.push(["first token", milliseconds(f.firstMs), "from sending to the first token"]);
  }
  if (f.speed) {
    rows.push(["speed", `${short(f.speed)} tokens/s`, "tokens behind the first, per second"]);
  }
  if (f.completion !== undefined) {
    rows.push(["answer", `${f.completion} tokens`, "reasoning and end token included"]);
  }
  if (f.prompt !== undefined) {
    rows.push(["reused", `${f.cached} of ${f.prompt} tokens`, "of the prompt, taken from the cache"]);
  }
  if (f.accepted + f.rejected > 0) {
    const steps = f.completion - f.accepted;
    rows.push(["drafts", `${percent(f.accepted / (f.accepted + f.rejected))} stood, ` +
               `${(f.completion / Math.max(1, steps)).toFixed(2)} tokens a step`,
               "guessed tokens that the model accepted"]);
  }
  const ends = {length: "length reached", abort: "aborted", stopped: "stopped by you"};
  if (ends[f.finish]) {
    rows.push(["end", ends[f.finish], "why the answer ended"]);
  }
  return rows;
}
