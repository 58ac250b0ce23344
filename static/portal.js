// The little that pages do by themselves: remember the theme, close toasts, copy text.
// Loaded in the head without `defer`, so that a remembered theme is there before the first paint.
(() => {
  "use strict";
  const root = document.documentElement;
  const remembered = (() => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // Storage is switched off: the system's theme holds.
    }
  })();
  if (remembered) root.dataset.theme = remembered;

  const systemTheme = () =>
    matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

  const toggleTheme = () => {
    const theme = (root.dataset.theme ?? systemTheme()) === "dark" ? "light" : "dark";
    root.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // It lasts for this page alone then.
    }
  };

  const copy = async (button) => {
    await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent);
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-toggle-theme], [data-dismiss], [data-copy]");
    if (button?.matches("[data-toggle-theme]")) toggleTheme();
    else if (button?.matches("[data-dismiss]")) button.closest("[role]").remove();
    else if (button) copy(button);

    // A menu closes when the click lands elsewhere.
    for (const menu of document.querySelectorAll("details[data-menu][open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details[data-menu][open]")) menu.open = false;
  });
})();
