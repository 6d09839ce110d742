"use strict";
// The page of an archive: a record is a candidate in a run.
const RUN_COLUMNS = [
  { key: "date", title: "made", wrap: true }, { key: "gpu", title: "GPU", wrap: true }, { key: "versions", wrap: true }, { key: "op", wrap: true },
  { key: "implementation", fill: (cell, r) => { cell.append(Object.assign(document.createElement("code"), { textContent: r.implementation })); } },
  { key: "regime" },
  { key: "speedup", title: "speed-up", number: true, text: (r) => (r.speedup === null ? "–" : `${r.speedup.toFixed(2)}×`), fill: (cell, r) => { cell.textContent = r.speedup === null ? "–" : `${r.speedup.toFixed(2)}×`; bear(cell, r.caution); } },
  { key: "compared", title: "of cases", number: true, text: (r) => `${r.compared} of ${r.cases}` },
  { key: "faster", number: true, text: (r) => String(r.faster) }, { key: "failed", number: true, text: (r) => String(r.failed) },
  { key: "status", title: "run is", fill: (cell, r) => tag(cell, r.status) },
  ...[{ key: "run" }, { key: "time_ms", title: "mean ms", text: (r) => digits(r.time_ms, 4) }, { key: "trust" }, { key: "combo" }, { key: "commit" }, { key: "kernels_commit", title: "kernels" }, { key: "nsabench" }].map((column) => ({ ...column, detail: true })),
];

// What tells the candidates that are shown from each other.
function seriesName(rows) {
  const gpus = distinct(rows, "gpu").length > 1, ops = distinct(rows, "op").length > 1, regimes = distinct(rows, "regime").length > 1;
  return (r) => [...(ops ? [r.op] : []), r.implementation, ...(regimes ? [r.regime] : []), ...(gpus ? [r.gpu] : [])].join(" · ");
}

function drawTrend() {
  const what = document.getElementById("pick-what").value;
  const all = chosen(), name = seriesName(all);
  const rows = all.filter((r) => r[what] !== null).map((r) => ({
    at: r.at, value: r[what], series: name(r), line: `${name(r)} ${r.cases_hash}`, date: r.date,
    versions: r.versions, run: r.run, cases: `${r.compared} of ${r.cases}`, failed: r.failed,
  }));
  const series = distinct(rows, "series").sort();
  return drawChart("trend", { rows }, {
    series, seriesColours: series.map((_, i) => PALETTE[i % PALETTE.length]),
    title: what === "speedup" ? "speed-up" : "ms",
  });
}

// A set of versions over its column, where a mark has a line of its own.
const inLines = (versions) => versions.replace(" (", "\n(");

function drawVersions() {
  const all = chosen(), name = seriesName(all), latest = new Map();
  // Records come by date.
  for (const r of all) latest.set(`${name(r)} ${r.versions}`, r);
  const rows = [...latest.values()].map((r) => ({
    ...r, row: name(r), column: inLines(r.versions), log2: r.speedup === null ? null : Math.log2(r.speedup),
    cell: r.speedup === null ? `${r.ok}/${r.cases} ok` : `${r.speedup.toFixed(2)}×${r.caution ? " †" : ""} · ${r.ok}/${r.cases} ok`,
  })).sort((a, b) => a.row.localeCompare(b.row));
  const tip = [["row", "candidate"], ["versions", "versions"], ["regime", "regime"], ["speedup", "speed-up"], ["caution", "but"], ["faster", "cases faster"], ["failed", "cases failed"], ["date", "made"], ["run", "run"]]
    .map(([field, title]) => ({ field, title }));
  const shown = report.versions.filter((v) => rows.some((r) => r.versions === v)).map(inLines);
  return drawChart("heat", { rows }, { ...heatOf("row", "column", null, shown, "speed-up", tip), ...rowsOf(rows, 34) }, { minWidth: 200 + shown.length * 130 });
}

async function drawAll() {
  dataTable(document.querySelector('[data-table="runs"]'), "runs", RUN_COLUMNS, chosen().reverse());
  await Promise.all([drawTrend(), drawVersions()]);
  countDrawn();
}

async function main() {
  await unpack();
  buildFilters(drawAll, { single: false });
  watchTheme(drawAll);
  redrawWhenNarrowed(drawAll);
  document.getElementById("pick-what").addEventListener("change", async () => { await drawTrend(); countDrawn(); });
  await drawAll();
}

main();
