"use strict";
// Colours come from the style sheet, so that page and charts always agree.
function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function chartConfig() {
  const ink = token("--ink"), quiet = token("--quiet"), line = token("--line");
  const font = "system-ui, sans-serif";
  return {
    background: "transparent",
    font,
    view: { stroke: null },
    axis: { labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: 400, labelFontSize: 11, titleFontSize: 12 },
    legend: { labelColor: ink, titleColor: quiet, titleFontWeight: 400, labelFontSize: 12, symbolSize: 90 },
  };
}

// Okabe and Ito's palette without its yellow: told apart with any colour vision.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

function themeValues() {
  return {
    ink: token("--ink"),
    muted: token("--muted"),
    surface: token("--surface"),
    bad: token("--bad"),
    diverging: ["#b35806", token("--slower-soft"), token("--even"), token("--faster-soft"), "#1f5fa8"],
    verdicts: [token("--faster"), token("--same"), token("--slower"), token("--unsure"), token("--bad")],
  };
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = `theme: ${theme}`;
  button.dataset.theme = theme;
  button.setAttribute("title", `Colour theme: ${theme === "auto" ? "as the system" : theme}`);
}

function watchTheme(redraw) {
  const button = document.getElementById("theme");
  setTheme("auto");
  button.addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(button.dataset.theme) + 1) % THEMES.length]);
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
