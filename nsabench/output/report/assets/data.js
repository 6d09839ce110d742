"use strict";
// The records of the page, unpacked once; every other script reads `report`.
const report = { records: [], columns: {} };

async function unpack() {
  const packed = atob(document.getElementById("data").textContent.trim());
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  const { count, texts, numbers, strings, ...rest } = data;
  report.records = Array.from({ length: count }, (_, index) => {
    const record = { index };
    for (const [key, column] of Object.entries(texts)) record[key] = strings[column[index]];
    for (const [key, column] of Object.entries(numbers)) record[key] = column[index];
    return record;
  });
  Object.assign(report, rest);
  const times = new Map(report.records.map((r) => [`${r.case_id} ${r.implementation}`, r.median_ms]));
  for (const r of report.records) r.baseline_ms = times.get(`${r.case_id} ${r.best_baseline}`) ?? null;
}

const SYMBOL = { faster: "▲", slower: "▼", same: "=", inconclusive: "?", invalid: "✕" };
const SHORT = { float16: "fp16", bfloat16: "bf16", float32: "fp32" };

function digits(value, count) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(count)));
}

// µs, ms or s, as fits.
function timeOf(ms, count = 4) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return `${digits(ms * 1000, count)} µs`;
  return ms < 1000 ? `${digits(ms, count)} ms` : `${digits(ms / 1000, count)} s`;
}

function interval(value, lo, hi) {
  return value === null ? "–" : `${value.toFixed(2)}× [${lo.toFixed(2)}, ${hi.toFixed(2)}]`;
}

// A median with its quantiles; `scale` makes ms of the unit. What has none of them has its median.
function spreadOf(median, p20, p80, scale = 1) {
  if (median === null || median === undefined) return "–";
  const said = timeOf(median * scale);
  return p20 === null || p80 === null ? said : `${said} (${timeOf(p20 * scale)} to ${timeOf(p80 * scale)})`;
}

const hostOf = (r) => spreadOf(r.host_us, r.host_p20_us, r.host_p80_us, 1e-3);
const queuedOf = (r) => spreadOf(r.queue_median_ms, r.queue_p20_ms, r.queue_p80_ms);
const launchesOf = (r) => (r.launches === null ? "–" : String(r.launches));

const speedupOf = (record) => interval(record.speedup, record.speedup_lo, record.speedup_hi);

function distinct(records, key) {
  return [...new Set(records.map((r) => r[key]))];
}
