// The frame of the page: views, panels, colours, keys of the keyboard, and what is served.
import {getJson} from "./api.js";
import * as chat from "./chat.js";
import {byId} from "./dom.js";
import * as live from "./live.js";
import * as settings from "./settings.js";
import {read, write} from "./store.js";

const kThemes = ["system", "light", "dark"];
const kRetryMs = 3000;

function showState(words, state) {
  byId("state").textContent = words;
  byId("state").dataset.state = state;
}

async function look() {
  try {
    const cards = (await getJson("/v1/models")).data;
    if (cards.length === 0) {
      // A run that takes no requests: there is nobody to talk to.
      byId("tab-chat").hidden = true;
      openView("live");
      showState("live view", "good");
      return;
    }
    settings.setModels(cards.map((card) => card.id));
    byId("model-name").textContent = cards.map((card) => card.id).join(", ");
    showState("ready", "good");
  } catch (error) {
    showState(error.message, "bad");
    if (error.status === 0 || error.status === 503) {
      setTimeout(look, kRetryMs);
    }
  }
}

function openView(name) {
  for (const other of ["chat", "live"]) {
    const chosen = other === name;
    byId(other).hidden = !chosen;
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  byId("settings-button").hidden = name !== "chat";
  byId("list-button").hidden = name !== "chat";
  history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
  live.setVisible(name === "live");
}

function isNarrow() {
  return matchMedia("(max-width: 900px)").matches;
}

function setUpPanels() {
  const settingsButton = byId("settings-button");
  const listButton = byId("list-button");
  const place = () => {
    const shown = isNarrow() ? byId("settings").classList.contains("open") : read("panel", true);
    byId("chat").classList.toggle("no-settings", !isNarrow() && !shown);
    settingsButton.setAttribute("aria-expanded", String(shown));
    listButton.setAttribute("aria-expanded", String(byId("list").classList.contains("open")));
  };
  settingsButton.addEventListener("click", () => {
    if (isNarrow()) {
      byId("list").classList.remove("open");
      byId("settings").classList.toggle("open");
    } else {
      write("panel", !read("panel", true));
    }
    place();
  });
  listButton.addEventListener("click", () => {
    byId("settings").classList.remove("open");
    byId("list").classList.toggle("open");
    place();
  });
  for (const part of ["messages", "composer"]) {
    byId(part).addEventListener("pointerdown", closePanels);
  }
  matchMedia("(max-width: 900px)").addEventListener("change", place);
  place();
}

/// True when one was open over the chat.
function closePanels() {
  let any = false;
  for (const [panel, button] of [["list", "list-button"], ["settings", "settings-button"]]) {
    if (isNarrow() && byId(panel).classList.contains("open")) {
      byId(panel).classList.remove("open");
      byId(button).setAttribute("aria-expanded", "false");
      byId(button).focus();
      any = true;
    }
  }
  return any;
}

function setUpTheme() {
  const button = byId("theme-button");
  const apply = (theme) => {
    button.title = `Colours: ${theme === "system" ? "as the system" : theme}`;
    button.querySelector(".hidden").textContent = button.title;
    if (theme === "system") {
      delete document.documentElement.dataset.theme;
    } else {
      document.documentElement.dataset.theme = theme;
    }
    live.recolour();
  };
  button.addEventListener("click", () => {
    const theme = kThemes[(kThemes.indexOf(read("theme", "system")) + 1) % kThemes.length];
    write("theme", theme);
    apply(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => live.recolour());
  apply(read("theme", "system"));
}

function setUpTabs() {
  for (const name of ["chat", "live"]) {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => openView(name));
    tab.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const other = name === "chat" ? "live" : "chat";
        openView(other);
        byId(`tab-${other}`).focus();
      }
    });
  }
}

function setUpKeys() {
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (!closePanels()) {
        chat.stop();
      }
    } else if (event.altKey && event.key.toLowerCase() === "n") {
      event.preventDefault();
      openView("chat");
      chat.startNew();
    }
  });
}

settings.setUp((name) => {
  if (name === "key") {
    look();
    live.restart();
  }
});
setUpPanels();
setUpTabs();
setUpKeys();
live.setUp();
setUpTheme();
chat.setUp();
openView(location.hash === "#live" ? "live" : "chat");
look();
if (!isNarrow()) {
  byId("prompt").focus();
}
