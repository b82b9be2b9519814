// Talking to the server: JSON, and streams of events read from fetch(), which unlike EventSource
// can carry a key and a body. Everything goes to the page's own origin.

let key = "";

export function setKey(value) {
  key = value;
}

/// An answer that is no success, with the server's own words.
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers() {
  return {
    ...(key ? {Authorization: `Bearer ${key}`} : {}),
    "Content-Type": "application/json",
  };
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, {cache: "no-store", headers: headers(), ...options});
  } catch (error) {
    if (error.name === "AbortError") {
      throw error;
    }
    throw new ServerError("The server cannot be reached.");
  }
  if (!response.ok) {
    throw new ServerError(await wordsOf(response), response.status);
  }
  return response;
}

async function wordsOf(response) {
  const text = await response.text();
  try {
    const {message, param} = JSON.parse(text).error;
    return param && !message.includes(param) ? `${param}: ${message}` : message;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}

export async function getJson(path) {
  return (await send(path)).json();
}

export async function postJson(path, body) {
  return (await send(path, {method: "POST", body: JSON.stringify(body)})).json();
}

/// Calls `take(data)` for every event until the stream ends; `[DONE]` is an event too.
export async function readEvents(path, {body, signal}, take) {
  const response = await send(path, {
    signal,
    ...(body ? {method: "POST", body: JSON.stringify(body)} : {}),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) {
        return;
      }
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length > 0) {
            take(data.join("\n"));
          }
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) {
      throw error;
    }
    throw new ServerError("The connection to the server broke off.");
  }
}
