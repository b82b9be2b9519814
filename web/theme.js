// Sets the colours before anything is drawn: as the system has them, light or dark.
(() => {
  let theme = "system";
  try {
    theme = JSON.parse(localStorage.getItem("baleen.theme")) || "system";
  } catch {
    // Storage may be forbidden, or hold something else; then the system decides.
  }
  if (theme !== "system") {
    document.documentElement.dataset.theme = theme;
  }
})();
