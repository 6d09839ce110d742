"use strict";
// Draws the charts. A specification is data (`charts/*.vl.json`) in which "@name" stands for a value
// of the theme or of the records that are shown.
const specifications = JSON.parse(document.getElementById("charts").textContent);

function filled(part, values) {
  if (typeof part === "string" && part.startsWith("@")) return values[part.slice(1)];
  if (Array.isArray(part)) return part.map((p) => filled(p, values));
  if (part && typeof part === "object") {
    return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, filled(value, values)]));
  }
  return part;
}

// `options`: `minWidth` in px, `select`, called with the case id of what is clicked.
async function drawChart(name, datasets, values, options = {}) {
  const figure = document.querySelector(`[data-chart="${name}"]`);
  if (!figure) return;
  const plot = figure.querySelector(".plot");
  const empty = !datasets.rows.length;
  figure.classList.toggle("empty", empty);
  if (empty) {
    plot.replaceChildren(Object.assign(document.createElement("p"), { className: "quiet", textContent: "Nothing to draw with these filters." }));
    return;
  }
  plot.style.minWidth = options.minWidth ? `${options.minWidth}px` : "";
  if (options.minWidth) {
    const scroll = plot.parentElement;
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Chart: ${name}`);
  }
  const spec = filled(specifications[name], { ...themeValues(), ...values });
  // A layer without data has no extent, which Vega complains of.
  if (spec.layer) spec.layer = spec.layer.filter((l) => !l.data || (datasets[l.data.name] || []).length);
  const narrow = plot.clientWidth < 520;
  if (narrow) shrink(spec);
  const view = await vegaEmbed(plot, { ...spec, datasets, config: chartConfig() }, {
    actions: false, renderer: "svg", ast: true, tooltip: { theme: "custom" },
    // Nothing is loaded: the data is here, and a reference to elsewhere is not followed.
    loader: { load: () => Promise.reject(new Error("offline")), sanitize: () => Promise.reject(new Error("offline")) },
  });
  figure.setAttribute("aria-label", figure.querySelector("figcaption").textContent.trim());
  view.view.addEventListener("click", (_, item) => {
    if (options.select && item && item.datum && item.datum.case_id) options.select(item.datum.case_id, name);
  });
}

// A name of a row in lines that fit beside a chart; none of its words is cut off.
function wrapped(name) {
  const most = innerWidth < 620 ? 16 : 62;
  const lines = [""];
  for (const word of name.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + 1 + word.length > most) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines.join("\n");
}

// The height of a chart of such rows, each at least so many px, and where a name of several lines
// begins, so that its middle is beside the row.
function rowsOf(rows, least) {
  const names = distinct(rows, "row");
  const lines = Math.max(1, ...names.map((name) => name.split("\n").length));
  return { height: names.length * Math.max(least, 13 * lines + 4), labelOffset: -6.5 * (lines - 1) };
}

const TIME_LABEL = "datum.value < 1 ? format(datum.value * 1000, '.3~g') + ' µs' : datum.value < 1000 ? format(datum.value, '.3~g') + ' ms' : format(datum.value / 1000, '.3~g') + ' s'";

// What a phone has no room for.
function shrink(spec) {
  const parts = [spec, ...(spec.layer || [])];
  for (const part of parts) {
    for (const channel of Object.values(part.encoding || {})) {
      if (channel && channel.legend) channel.legend.columns = Math.max(1, (channel.legend.columns || 3) - 1);
      if (channel && channel.axis && channel.axis.labelLimit) channel.axis.labelLimit = 150;
    }
  }
}

// What a heat map of ratios shows: cells have `log2` for their colour and `cell` for their text.
function heatOf(row, column, columnTitle, columnSort, colourTitle, tooltip = CASE_TIP) {
  return { row, column, columnTitle, columnSort, colourTitle, tooltip };
}

const CASE_TIP = [
  ["label", "case"], ["verdict", "verdict"], ["ratio", "speed-up"], ["best_baseline", "best baseline"], ["host", "host"], ["queued", "queued"], ["calls", "launches"], ["reason", "reason"],
].map(([field, title]) => ({ field, title }));

// Charts follow the width by themselves; what a phone leaves out is decided when drawn.
function redrawWhenNarrowed(redraw) {
  let width = innerWidth;
  addEventListener("resize", () => {
    if ((width < 620) !== (innerWidth < 620)) redraw();
    width = innerWidth;
  });
}

// How often the page was drawn, for those who wait for it.
function countDrawn() {
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
}
