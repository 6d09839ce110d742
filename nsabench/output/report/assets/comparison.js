"use strict";
// The page of a comparison: a record is a cell in one run; what compares it is null in the first.
const MOST_CASES = 80;

const compareTag = (key, title) => ({ key, title, fill: (cell, r) => tag(cell, r[key]) });
const CELL_COLUMNS = [
  { key: "label", title: "case" }, { key: "op" },
  { key: "implementation", fill: (cell, r) => { cell.append(Object.assign(document.createElement("code"), { textContent: r.implementation })); } },
  { key: "run" }, compareTag("change", "status changed"), compareTag("status", "status"),
  compareTag("difference", "time"),
  { key: "ratio", title: "ratio [95 %]", number: true, text: (r) => interval(r.ratio, r.lo, r.hi) },
  { key: "median_ms", title: "median ms", number: true, text: (r) => digits(r.median_ms, 4) },
  { key: "speedup", title: "speed-up over its baseline", number: true, text: (r) => interval(r.speedup, r.speedup_lo, r.speedup_hi) },
  { key: "verdict", text: (r) => [r.verdict, r.regime, r.caution].filter(Boolean).join(" "), fill: (cell, r) => { tag(cell, r.verdict); bear(cell, r.verdict && r.regime); bear(cell, r.verdict && r.caution); } }, { key: "best_baseline", title: "best baseline" },
  { key: "why", wide: true }, { key: "reason", wide: true },
];

function picked() {
  const what = document.getElementById("pick-what").value, which = document.getElementById("pick-cases").value;
  const rows = chosen().filter((r) => r.implementation === filters.candidate);
  if (which === "all") return { what, rows };
  const ids = new Set(rows.filter((r) => (which === "change" ? r.change : r.difference === which)).map((r) => r.case_id));
  return { what, rows: rows.filter((r) => ids.has(r.case_id)) };
}

function matrixRows() {
  const { what, rows } = picked();
  const ids = distinct(rows, "case_id");
  const shown = new Set(ids.slice(0, MOST_CASES));
  const ops = distinct(report.records, "op").length > 1;
  const cells = rows.filter((r) => shown.has(r.case_id)).map((r) => {
    const value = r[what], word = what === "speedup" ? r.verdict : r.difference;
    const start = what === "ratio" && r.run === report.runs[0] && r.median_ms !== null;
    return {
      ...r,
      row: ops ? `${r.op} ${r.label}` : r.label,
      log2: value === null ? null : Math.log2(value),
      cell: start ? `${digits(r.median_ms, 3)} ms` : value === null ? r.status : `${SYMBOL[word] || ""} ${value.toFixed(2)}${what === "speedup" && r.caution ? " †" : ""}`,
      speed: interval(r.speedup, r.speedup_lo, r.speedup_hi) + (r.caution ? `, ${r.caution}` : ""),
      times: interval(r.ratio, r.lo, r.hi),
      time: digits(r.median_ms, 4),
      said: r.reason || r.why || "–",
    };
  });
  return { cells, left: ids.length - shown.size };
}

const TIP = [
  ["row", "case"], ["run", "run"], ["status", "status"], ["time", "median ms"], ["speed", "speed-up"], ["times", "ratio to the first"], ["said", "reason"],
].map(([field, title]) => ({ field, title }));

function drawMatrix() {
  const { cells, left } = matrixRows();
  const note = document.querySelector('[data-chart="heat"] figcaption');
  note.dataset.full ??= note.textContent;
  note.textContent = note.dataset.full + (left > 0 ? ` The first ${MOST_CASES} cases; ${left} more: filter to see them.` : "");
  const title = document.getElementById("pick-what").value === "speedup" ? "speed-up" : "ratio";
  const values = { ...heatOf("row", "run", null, report.runs, title, TIP), ...rowsOf(cells, 26) };
  return drawChart("heat", { rows: cells }, values, { minWidth: 190 + report.runs.length * 92 });
}

function drawRatios() {
  const many = report.runs.length > 2;
  const rows = chosen().filter((r) => r.ratio !== null).map((r) => ({
    ...r, who: many ? `${r.implementation} · ${r.run}` : r.implementation,
    times: interval(r.ratio, r.lo, r.hi),
  }));
  const means = distinct(rows, "who").sort().map((who) => {
    const logs = rows.filter((r) => r.who === who).map((r) => Math.log(r.ratio));
    return { who, ratio: Math.exp(logs.reduce((a, b) => a + b, 0) / logs.length), cells: logs.length };
  });
  const marks = [1 / (1 + report.band), 1, 1 + report.band].map((at) => ({ at, what: at === 1 ? "equal" : `band of ${100 * report.band} %` }));
  return drawChart("ratios", { rows, means, marks }, { height: 24 * means.length, order: means.map((m) => m.who) });
}

async function drawAll() {
  dataTable(document.querySelector('[data-table="cells"]'), "cells", CELL_COLUMNS, chosen().filter((r) => r.run !== report.runs[0]));
  await Promise.all([drawMatrix(), drawRatios()]);
  countDrawn();
}

async function main() {
  await unpack();
  buildFilters(drawAll);
  watchTheme(drawAll);
  redrawWhenNarrowed(drawAll);
  for (const id of ["pick-what", "pick-cases"]) {
    document.getElementById(id).addEventListener("change", async () => { await drawMatrix(); countDrawn(); });
  }
  await drawAll();
}

main();
