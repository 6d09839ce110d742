"use strict";
const time = (key, title) => ({ key, title, number: true, text: (r) => timeOf(r[key]) });
const small = (key, title) => ({ key, title, number: true, text: (r) => (r[key] === null ? "–" : r[key].toExponential(1)) });
const share = { key: "roofline_fraction", title: "of roofline", number: true, text: (r) => (r.roofline_fraction === null ? "–" : `${Math.round(100 * r.roofline_fraction)} %`) };
const who = { key: "implementation", fill: (cell, r) => { cell.append(Object.assign(document.createElement("code"), { textContent: r.implementation })); } };
const inQueue = { key: "queue_verdict", title: "in the queue", fill: (cell, r) => { tag(cell, untimed(r) ? "" : r.queue_verdict); bear(cell, r.queue_verdict && r.queue_caution); } };
const speedupInQueue = {
  key: "queue_speedup", title: "speed-up in the queue [95 %]",
  text: (r) => (r.queue_speedup === null ? "–" : `${interval(r.queue_speedup, r.queue_speedup_lo, r.queue_speedup_hi)} to ${r.queue_best_baseline}${r.queue_caution ? `, ${r.queue_caution}` : ""}`),
};
const speedup = { key: "speedup", title: "speed-up [95 %]", number: true, text: speedupOf };
const why = { key: "reason", wide: true };
const inspect = {
  key: "short", title: "case", wrap: true,
  fill: (cell, r) => {
    if (!report.samples[r.index]) { cell.textContent = r.short || r.label; return; }
    const button = Object.assign(document.createElement("button"), { type: "button", className: "link", textContent: r.short || r.label, title: `${r.label}: show its samples` });
    button.addEventListener("click", () => showCase(r.case_id, "table"));
    cell.append(button);
  },
};

// Of a control, what became of it: one that is wrong has done its work.
const untimed = (r) => r.role === "candidate" && r.status === "ok" && r.median_ms === null;
const outcomeOf = (r) => r.caught || (untimed(r) ? "not timed" : r.status === "ok" ? r.verdict || r.status : r.status);
const outcome = { key: "verdict", title: "on the device", text: (r) => `${outcomeOf(r)} ${r.status}`, fill: (cell, r) => { tag(cell, outcomeOf(r)); bear(cell, r.verdict && r.caution); } };
const library = { key: "package", title: "library", text: (r) => [r.package, r.package_version, r.licence].filter(Boolean).join(", ") };
// A name may take a second line behind each of its underscores.
function inParts(cell, name) {
  (name || "–").split(/(?<=_)/).forEach((part, i) => { if (i) cell.append(document.createElement("wbr")); cell.append(part); });
}
const baseline = { key: "best_baseline", title: "best baseline", wrap: true, fill: (cell, r) => inParts(cell, r.best_baseline) };
const detail = (column) => ({ ...column, detail: true });
// What a call costs its caller: a device time says nothing of it.
const CALLER = [
  { key: "host_us", title: "host (20 % to 80 %)", text: hostOf },
  { key: "queue_median_ms", title: "queued (20 % to 80 %)", text: queuedOf },
  { key: "launches", text: launchesOf },
  speedupInQueue,
].map(detail);
const DETAILS = [...CALLER, ...[
  { key: "label", title: "case" }, { key: "case_id", title: "id" }, { key: "status" }, why, { key: "diagnosis" }, { key: "notes" }, library,
  small("mae", "MAE"), small("rel_l2", "relative L2"), small("worst_row", "of the worst row"), time("p20_ms", "20 %"), time("p80_ms", "80 %"),
  { key: "n_samples", title: "samples", text: (r) => String(r.n_samples) },
  { key: "compile_s", title: "first call", text: (r) => (r.compile_s === null ? "–" : `${digits(r.compile_s, 2)} s`) },
  { key: "peak_mem_bytes", title: "peak memory", text: (r) => (r.peak_mem_bytes === null ? "–" : `${digits(r.peak_mem_bytes / 1e6, 3)} MB`) },
].map(detail)];

const TABLES = {
  candidates: [inspect, who, outcome, inQueue, speedup, time("median_ms", "its time"), time("baseline_ms", "baseline's time"), baseline, share, ...DETAILS],
  records: [inspect, who, { key: "role" }, outcome, time("median_ms", "its time"), time("baseline_ms", "baseline's time"), speedup, share, detail({ key: "caught" }), ...DETAILS],
};

function drawTables() {
  const records = chosen();
  const rows = { candidates: records.filter((r) => r.role === "candidate"), records };
  for (const [name, columns] of Object.entries(TABLES)) {
    const host = document.querySelector(`[data-table="${name}"]`);
    if (host) dataTable(host, name, columns, rows[name]);
  }
}

// All implementations of the selected case, the fastest first; those without a time say why.
function drawCaseTable() {
  const host = document.querySelector('[data-table="case"]');
  if (!host) return;
  const rows = report.records.filter((r) => r.case_id === selected.caseId && r.role !== "control")
    .sort((a, b) => (a.median_ms ?? Infinity) - (b.median_ms ?? Infinity));
  dataTable(host, "the selected case", [who, { key: "role" }, outcome, time("median_ms", "its time"), share, speedup, small("mae", "MAE"), ...CALLER, detail(why)], rows, { bare: true });
}

function fillPickers() {
  const series = document.getElementById("pick-series"), cases = document.getElementById("pick-case");
  if (!series) return;
  const timed = chosen().filter((r) => r.role !== "control" && r.median_ms !== null);
  const groups = seriesOf(chosen().filter((r) => r.role !== "control"));
  const withTimes = [...groups.keys()].filter((key) => groups.get(key).some((r) => r.median_ms !== null));
  if (!withTimes.includes(selected.series)) {
    // The most lengths, then the most work: where a difference shows.
    const weight = (key) => [distinct(groups.get(key), "length").length, Math.max(...groups.get(key).map((r) => r.bytes_min))];
    selected.series = withTimes.slice().sort((a, b) => {
      const [x, y] = [weight(a), weight(b)];
      return y[0] - x[0] || y[1] - x[1];
    })[0] ?? null;
  }
  series.replaceChildren(...withTimes.map((key) => new Option(key, key, false, key === selected.series)));
  const members = timed.filter((r) => (groups.get(selected.series) || []).includes(r));
  const ids = distinct(members, "case_id");
  if (!ids.includes(selected.caseId)) selected.caseId = ids[ids.length - 1] ?? null;
  const label = new Map(members.map((r) => [r.case_id, r.label]));
  cases.replaceChildren(...ids.map((id) => new Option(label.get(id), id, false, id === selected.caseId)));
}

function showCase(caseId, from) {
  const record = report.records.find((r) => r.case_id === caseId && r.role !== "control");
  const groups = seriesOf(chosen().filter((r) => r.role !== "control"));
  for (const [key, members] of groups) if (members.includes(record)) selected.series = key;
  selected.caseId = caseId;
  document.getElementById("why").querySelector("details").open = true;
  fillPickers();
  drawTime();
  drawSamples();
  const target = document.querySelector('[data-chart="samples"]');
  if (target && from !== "time") {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    target.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "center" });
    target.focus({ preventScroll: true });
  }
}

// A chart needs the width that it will have, so folded sections are open while it is drawn.
async function drawUnfolded() {
  const folded = [...document.querySelectorAll("details.fold:not([open])")];
  folded.forEach((d) => { d.open = true; });
  await drawAll();
  folded.forEach((d) => { d.open = false; });
  reveal();
}

function reveal() {
  const fold = location.hash && document.getElementById(location.hash.slice(1))?.querySelector("details.fold");
  if (fold && !fold.open) { fold.open = true; fold.scrollIntoView(); }
}

async function main() {
  await unpack();
  const redraw = () => { drawUnfolded(); };
  addEventListener("hashchange", reveal);
  buildFilters(() => { drawTables(); redraw(); });
  watchTheme(redraw);
  document.getElementById("pick-series")?.addEventListener("change", (event) => {
    selected.series = event.target.value;
    fillPickers();
    drawTime();
    drawSamples();
  });
  document.getElementById("pick-case")?.addEventListener("change", (event) => {
    selected.caseId = event.target.value;
    drawSamples();
  });
  redrawWhenNarrowed(redraw);
  drawTables();
  await drawUnfolded();
}

main();
