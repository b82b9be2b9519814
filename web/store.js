// Conversations, in this browser's storage and nowhere else.

const kKey = "baleen.conversations";

/// What is said of an answer that was under way then.
export const kLeft = "The page was left before the answer was complete.";

export function load() {
  try {
    const list = JSON.parse(localStorage.getItem(kKey) || "[]");
    for (const conversation of list) {
      for (const message of conversation.messages) {
        if (message.running) {
          message.running = false;
          message.error = {message: kLeft, status: 0};
        }
      }
    }
    return list;
  } catch {
    return [];
  }
}

/// Keeps the list; gives up the oldest conversations where the browser has no room for all. False
/// when nothing can be kept.
export function save(conversations) {
  let list = conversations.filter((conversation) => conversation.messages.length > 0);
  for (;;) {
    try {
      localStorage.setItem(kKey, JSON.stringify(list));
      return true;
    } catch {
      if (list.length <= 1) {
        return false;
      }
      list = list.slice(0, -1);
    }
  }
}

export function newConversation() {
  return {id: randomId(), title: "", changed: Date.now(), messages: []};
}

/// Also where crypto.randomUUID is missing: it needs a secure context.
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function read(name, otherwise) {
  try {
    const text = localStorage.getItem(`baleen.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function write(name, value) {
  try {
    localStorage.setItem(`baleen.${name}`, JSON.stringify(value));
  } catch {
    // The choice then lasts as long as the page.
  }
}
