"use strict";
// Draws the charts. A specification is data (`charts/*.vl.json`) in which "@name" stands for a value
// of the theme or of the records that are shown.
const specifications = JSON.parse(document.getElementById("charts").textContent);
const MOST_INTERVALS = 120;
const selected = { series: null, caseId: null };

function filled(part, values) {
  if (typeof part === "string" && part.startsWith("@")) return values[part.slice(1)];
  if (Array.isArray(part)) return part.map((p) => filled(p, values));
  if (part && typeof part === "object") {
    return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, filled(value, values)]));
  }
  return part;
}

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
  const spec = filled(specifications[name], { ...themeValues(), ...values });
  const narrow = plot.clientWidth < 520;
  if (narrow) shrink(spec);
  const view = await vegaEmbed(plot, { ...spec, datasets, config: chartConfig() }, {
    actions: false, renderer: "svg", ast: true, tooltip: { theme: "custom" },
    // Nothing is loaded: the data is here, and a reference to elsewhere is not followed.
    loader: { load: () => Promise.reject(new Error("offline")), sanitize: () => Promise.reject(new Error("offline")) },
  });
  figure.setAttribute("aria-label", figure.querySelector("figcaption").textContent.trim());
  view.view.addEventListener("click", (_, item) => {
    if (item && item.datum && item.datum.case_id) showCase(item.datum.case_id, name);
  });
}

// What a phone has no room for.
function shrink(spec) {
  const parts = [spec, ...(spec.layer || [])];
  for (const part of parts) {
    for (const channel of Object.values(part.encoding || {})) {
      if (channel && channel.legend) channel.legend.columns = 2;
      if (channel && channel.axis && channel.axis.labelLimit) channel.axis.labelLimit = 130;
    }
  }
}

function drawSpeedups() {
  const rows = candidateRows();
  const lengths = distinct(rows, "length").length;
  const sorted = rows.filter((r) => r.speedup !== null);
  const shown = sorted.slice(0, MOST_INTERVALS);
  const marks = [{ at: 1, what: "equal" }, { at: report.margin, what: `margin ${report.margin}` }];
  const note = document.querySelector('[data-chart="intervals"] figcaption');
  if (note) {
    note.dataset.full ??= note.textContent;
    note.textContent = note.dataset.full + (sorted.length > shown.length ? ` The first ${shown.length} of ${sorted.length} cases; filter to see others.` : "");
  }
  return [
    drawChart("heat", { rows }, { height: 30 * distinct(rows, "row").length }, { minWidth: 150 + lengths * 58 }),
    drawChart("intervals", { rows: shown, marks }, { height: 17 * distinct(shown, "label").length }),
  ];
}

function drawTime() {
  const groups = seriesOf(chosen().filter((r) => r.role !== "control"));
  const records = groups.get(selected.series) || [];
  const lengths = distinct(records, "length").sort((a, b) => a - b);
  return drawChart("time", { rows: timeRows(records) }, { ...kinds(true), lengths });
}

function drawSamples() {
  const { rows, names, left } = sampleRows(selected.caseId);
  const sampleColours = names.map((_, i) => PALETTE[i % PALETTE.length]);
  const of = report.records.find((r) => r.case_id === selected.caseId);
  const where = document.getElementById("samples-case");
  if (where && of) where.textContent = `${of.label}.` + (left > 0 ? ` The candidates and fastest baselines; ${left} more in the table.` : "");
  drawCaseTable();
  return drawChart("samples", { rows }, { sampleNames: names, sampleColours });
}

function drawRoofline() {
  const rows = rooflineRows();
  return drawChart("roofline", { rows, roof: roofs(rows) }, kinds(false));
}

function drawParity() {
  const all = parityRows();
  const rows = all.filter((r) => r.mae > 0);
  const exact = all.length - rows.length;
  const note = document.getElementById("parity-note");
  if (note) note.textContent = exact ? `${exact} outputs without any error are not on this logarithmic axis.` : "";
  const marks = distinct(all, "tolerance").map((at) => ({ at, what: `tolerance ${at}` }));
  const lengths = distinct(rows, "length").sort((a, b) => a - b);
  return drawChart("parity", { rows, marks }, { ...kinds(false), lengths });
}

async function drawAll() {
  fillPickers();
  await Promise.all([...drawSpeedups(), drawTime(), drawSamples(), drawRoofline(), drawParity()]);
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
}
