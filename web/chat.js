// The conversations and the one answer that may be under way.
import {readEvents, ServerError} from "./api.js";
import {byId, element} from "./dom.js";
import {messageView} from "./message.js";
import * as settings from "./settings.js";
import {kLeft, load, newConversation, save} from "./store.js";

const kExamples = ["What is 37 + 58?", "Explain what a prefix cache does.", "37加58等于多少？"];
const kSaveMs = 1000;
const kLeastSpanS = 0.02;  // a shorter answer has no speed

let conversations = [];
let current = null;
let running = null;  // {conversation, message, controller}
let views = new Map();  // message -> view, of the conversation that is shown

export function setUp() {
  conversations = load();
  current = conversations[0] || begin();
  byId("new-button").addEventListener("click", startNew);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("stop-button").addEventListener("click", stop);
  const prompt = byId("prompt");
  prompt.addEventListener("input", fitPrompt);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  addEventListener("pagehide", () => {
    if (running) {
      running.left = true;
    }
    keep();
    stop();  // browsers may let a page that was left go on reading
  });
  showAll();
}

export function startNew() {
  if (current.messages.length > 0) {
    current = begin();
  }
  showAll();
  byId("prompt").focus();
}

/// True when there was something to stop.
export function stop() {
  if (!running) {
    return false;
  }
  running.controller.abort();
  return true;
}

function begin() {
  const conversation = newConversation();
  conversations.unshift(conversation);
  return conversation;
}

function keep() {
  if (!save(conversations)) {
    announce("This browser has no room for the conversation.");
  }
}

function announce(words) {
  byId("announce").textContent = words;
}

function fitPrompt() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function send() {
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text || running) {
    return;
  }
  prompt.value = "";
  fitPrompt();
  current.messages.push({role: "user", content: text});
  current.title = current.title || text.slice(0, 80);
  answer();
}

// Drawing.

function showAll() {
  showList();
  const host = byId("messages");
  views = new Map();
  if (current.messages.length === 0) {
    host.replaceChildren(emptyView());
  } else {
    host.replaceChildren(...current.messages.map((message, index) => add(message, index).node));
  }
  showState();
  host.scrollTop = host.scrollHeight;
}

function add(message, index) {
  const view = messageView(message, {
    edit: (text) => changeUser(index, text),
    retry: () => retry(index),
    answerCalls: (results) => answerCalls(index, results),
  });
  views.set(message, view);
  return view;
}

function emptyView() {
  const ask = (text) => {
    byId("prompt").value = text;
    send();
  };
  return element("div", {class: "empty"}, element("h2", {}, "What would you like to know?"),
                 element("p", {}, "Conversations stay in this browser."),
                 element("div", {class: "examples"}, ...kExamples.map((text) =>
                   element("button", {type: "button", onclick: () => ask(text)}, text))));
}

function showList() {
  byId("conversations").replaceChildren(...conversations.map((conversation) => {
    const title = conversation.title || "New conversation";
    return element("li", {"aria-current": conversation === current ? "true" : null},
                   element("button", {type: "button", class: "open", title, onclick: () => open(conversation)}, title),
                   element("button", {type: "button", class: "quiet", "aria-label": `Delete: ${title}`,
                                      title: "Delete", onclick: () => remove(conversation)}, "×"));
  }));
}

function open(conversation) {
  current = conversation;
  showAll();
  byId("list").classList.remove("open");
  byId("list-button").setAttribute("aria-expanded", "false");
}

function remove(conversation) {
  if (running?.conversation === conversation) {
    stop();
  }
  conversations = conversations.filter((other) => other !== conversation);
  if (conversation === current) {
    current = conversations[0] || begin();
  }
  keep();
  showAll();
}

function showState() {
  byId("send-button").hidden = Boolean(running);
  byId("stop-button").hidden = !running;
}

/// Draws the message again, and follows it down where the reader is at the end.
function refresh(conversation, message) {
  if (conversation !== current) {
    return;
  }
  const host = byId("messages");
  const atEnd = host.scrollHeight - host.scrollTop - host.clientHeight < 60;
  views.get(message)?.update();
  if (atEnd) {
    host.scrollTop = host.scrollHeight;
  }
}

// Asking.

function changeUser(index, text) {
  if (running) {
    return;
  }
  current.messages.length = index;
  current.messages.push({role: "user", content: text});
  answer();
}

function retry(index) {
  if (running) {
    return;
  }
  current.messages.length = index;
  answer();
}

function answerCalls(index, results) {
  if (running) {
    return;
  }
  const message = current.messages[index];
  message.open = false;
  current.messages.length = index + 1;
  message.calls.forEach((call, i) => {
    current.messages.push({role: "tool", id: call.id, name: call.name, content: results[i]});
  });
  answer();
}

function requestMessages(messages) {
  const out = [];
  const system = settings.systemMessage();
  if (system) {
    out.push({role: "system", content: system});
  }
  for (const message of messages) {
    if (message.role === "user") {
      out.push({role: "user", content: message.content});
    } else if (message.role === "tool") {
      out.push({role: "tool", tool_call_id: message.id, content: message.content});
    } else {
      out.push({
        role: "assistant",
        content: message.content || "",
        ...(message.reasoning ? {reasoning_content: message.reasoning} : {}),
        ...(message.calls?.length ? {tool_calls: message.calls.map((call) => ({
          id: call.id, type: "function", function: {name: call.name, arguments: call.arguments},
        }))} : {}),
      });
    }
  }
  return out;
}

async function answer() {
  const conversation = current;
  const body = {
    ...settings.requestFields(),
    messages: requestMessages(conversation.messages),
    stream: true,
    stream_options: {include_usage: true},
  };
  const message = {role: "assistant", content: "", reasoning: "", calls: [], running: true};
  conversation.messages.push(message);
  conversation.changed = Date.now();
  conversations = [conversation, ...conversations.filter((other) => other !== conversation)];
  const controller = new AbortController();
  const mine = {conversation, message, controller, left: false};
  running = mine;
  const timing = {sent: performance.now(), first: null, last: null};
  message.figures = {};
  showAll();
  announce("Answering");
  let drawn = 0;
  const draw = () => {
    cancelAnimationFrame(drawn);
    drawn = requestAnimationFrame(() => refresh(conversation, message));
  };
  const saver = setInterval(keep, kSaveMs);
  try {
    let done = false;
    await readEvents("/v1/chat/completions", {body, signal: controller.signal}, (data) => {
      if (data === "[DONE]") {
        done = true;
        return;
      }
      take(JSON.parse(data), message, timing);
      draw();
    });
    if (!done && !message.error) {
      throw new ServerError("The answer broke off.");
    }
    announce("The answer is complete.");
  } catch (error) {
    if (error.name === "AbortError" && mine.left) {
      message.error = {message: kLeft, status: 0};
    } else if (error.name === "AbortError") {
      message.figures.finish = "stopped";
      announce("Stopped");
    } else {
      message.error = {message: error.message, status: error.status || 0};
    }
  }
  clearInterval(saver);
  cancelAnimationFrame(drawn);
  message.running = false;
  message.open = message.figures.finish === "tool_calls";
  if (timing.first !== null) {
    message.figures.firstMs = timing.first - timing.sent;
    const seconds = (timing.last - timing.first) / 1000;
    if (message.figures.completion > 2 && seconds > kLeastSpanS) {
      message.figures.speed = (message.figures.completion - 1) / seconds;
    }
  }
  running = null;
  keep();
  refresh(conversation, message);
  showState();
  showList();
}

function take(chunk, message, timing) {
  if (chunk.error) {
    message.error = {message: chunk.error.message, status: 0};
    return;
  }
  if (chunk.usage) {
    const details = chunk.usage.completion_tokens_details || {};
    Object.assign(message.figures, {
      prompt: chunk.usage.prompt_tokens,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      completion: chunk.usage.completion_tokens,
      reasoning: details.reasoning_tokens ?? 0,
      accepted: details.accepted_prediction_tokens ?? 0,
      rejected: details.rejected_prediction_tokens ?? 0,
    });
  }
  const choice = chunk.choices?.[0];
  if (!choice) {
    return;
  }
  const delta = choice.delta || {};
  if (delta.reasoning_content || delta.content || delta.tool_calls) {
    timing.last = performance.now();
    timing.first ??= timing.last;
  }
  message.reasoning += delta.reasoning_content || "";
  message.content += delta.content || "";
  for (const part of delta.tool_calls || []) {
    const call = message.calls[part.index] ??= {id: "", name: "", arguments: ""};
    call.id ||= part.id || "";
    call.name ||= part.function?.name || "";
    call.arguments += part.function?.arguments || "";
  }
  if (choice.finish_reason) {
    message.figures.finish = choice.finish_reason;
  }
}
