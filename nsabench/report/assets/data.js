"use strict";
// The records of the run, unpacked once; every other script reads `report`.
const report = { records: [], samples: [], columns: {}, ceilings: {}, margin: 1.2, defaults: {} };

async function unpack() {
  const packed = atob(document.getElementById("data").textContent.trim());
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  const texts = data.texts.length;
  report.records = data.rows.map((row, index) => {
    const record = { index };
    data.texts.forEach((key, i) => { record[key] = row[i] === null ? null : data.strings[row[i]]; });
    data.numbers.forEach((key, i) => { record[key] = row[texts + i]; });
    return record;
  });
  for (const key of ["samples", "columns", "ceilings", "margin", "defaults"]) report[key] = data[key];
}

const SYMBOL = { faster: "▲", slower: "▼", same: "=", inconclusive: "?", invalid: "✕" };
const SHORT = { float16: "fp16", bfloat16: "bf16", float32: "fp32" };

function digits(value, count) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(count)));
}

function interval(record) {
  if (record.speedup === null) return "–";
  return `${record.speedup.toFixed(2)}× [${record.speedup_lo.toFixed(2)}, ${record.speedup_hi.toFixed(2)}]`;
}

function distinct(records, key) {
  return [...new Set(records.map((r) => r[key]))];
}
