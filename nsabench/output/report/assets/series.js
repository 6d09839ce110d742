"use strict";
// From records to what a chart draws. Nothing here touches the page.
const DECIDED = ["faster", "slower", "same"];
const LEAST = "least possible", BEST = "best baseline", OTHERS = "other baselines";

// What the axis of lengths is of: the selected length, but for ops that are decided on another size.
function lengthTitle(rows) {
  const axes = [...new Set(rows.map((r) => report.axes[r.op]))];
  return axes.map((axis) => (axis === "L" ? "selected length L" : axis)).join(", ") || "length";
}

function candidateRows() {
  const rows = chosen().filter((r) => r.role === "candidate" && r.implementation === filters.candidate);
  const name = rowNames(rows);
  // Rows of many lengths first: edge cases, which have one, would push them out of sight.
  const lengths = new Map();
  for (const r of rows) lengths.set(name(r), (lengths.get(name(r)) || new Set()).add(r.length));
  rows.sort((a, b) => lengths.get(name(b)).size - lengths.get(name(a)).size);
  return rows.map((r) => ({
    ...r,
    row: wrapped(name(r)),
    // No colour while it decides nothing.
    log2: DECIDED.includes(r.verdict) && r.speedup !== null ? Math.log2(r.speedup) : null,
    cell: r.speedup === null ? (r.verdict ? `${SYMBOL[r.verdict]} ${r.status}` : r.status) : `${SYMBOL[r.verdict] || ""} ${r.speedup.toFixed(2)}${r.caution ? " †" : ""}`,
    ratio: r.caution ? `${speedupOf(r)}, ${r.caution}` : speedupOf(r),
    host: hostOf(r),
    queued: queuedOf(r),
    calls: launchesOf(r),
    verdict: r.verdict || r.status,
    reason: r.reason || "–",
    best_baseline: r.best_baseline || "–",
  }));
}

function bestOf(records) {
  const best = new Map();
  for (const r of records) {
    if (r.role !== "baseline" || r.median_ms === null) continue;
    const fastest = best.get(r.case_id);
    if (!fastest || r.median_ms < fastest.median_ms) best.set(r.case_id, r);
  }
  return best;
}

function kindOf(record, best) {
  if (record.role === "candidate") return record.implementation;
  return best.get(record.case_id) === record ? BEST : OTHERS;
}

// Colours and shapes of the kinds: the same for a candidate wherever it appears.
function kinds(withLeast, shown) {
  const candidates = distinct(report.records.filter((r) => r.role === "candidate"), "implementation");
  const present = new Set(shown.map((r) => r.implementation));
  const names = [...candidates.filter((name) => present.has(name)), BEST, OTHERS, ...(withLeast ? [LEAST] : [])];
  const shapes = ["circle", "square", "triangle-up", "cross", "triangle-down"];
  return {
    kinds: names,
    kindColours: names.map((n) => {
      if (n === LEAST) return token("--ink");
      if (n === BEST) return token("--best");
      if (n === OTHERS) return token("--others");
      return PALETTE[candidates.indexOf(n) % PALETTE.length];
    }),
    kindShapes: names.map((n) => {
      if (n === BEST) return "diamond";
      if (n === OTHERS || n === LEAST) return "circle";
      return shapes[candidates.indexOf(n) % shapes.length];
    }),
  };
}

function seriesOf(records) {
  const name = rowNames(records);
  const groups = new Map();
  for (const r of records) {
    const key = name(r);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(r);
  }
  return groups;
}

function timeRows(records) {
  const rows = records.filter((r) => r.role !== "control" && r.median_ms !== null);
  const best = bestOf(rows);
  const seen = new Set(), out = [];
  for (const r of rows) {
    const kind = kindOf(r, best);
    out.push({ ...r, kind, ratio: speedupOf(r) });
    // The best baseline changes with L; its points also belong to the line of their own baseline.
    if (kind === BEST) {
      out[out.length - 1] = { ...r, kind: BEST, group: BEST, ratio: "–" };
      out.push({ ...r, kind: OTHERS, ratio: "–" });
    }
    if (r.floor_ms !== null && !seen.has(r.case_id)) {
      seen.add(r.case_id);
      out.push({ case_id: r.case_id, implementation: LEAST, kind: LEAST, length: r.length, median_ms: r.floor_ms, p20_ms: null, p80_ms: null, ratio: "–", verdict: "–", roofline_fraction: 1 });
    }
  }
  return out.map((r) => ({ ...r, time: timeOf(r.median_ms), line: r.kind === BEST ? BEST : r.implementation, verdict: r.verdict || "–" }));
}

function rooflineRows() {
  // Without arithmetic (nothing is selected) there is no place on logarithmic axes.
  const rows = chosen().filter((r) => r.role !== "control" && r.median_ms !== null && r.flops > 0);
  const best = bestOf(rows);
  return rows.map((r) => ({ ...r, time: timeOf(r.median_ms), kind: kindOf(r, best), intensity: r.flops / r.bytes_min, tflops: r.flops / r.median_ms / 1e9 }))
    .sort((a, b) => (a.kind === OTHERS ? 0 : 1) - (b.kind === OTHERS ? 0 : 1));
}

// One roof a dtype that is shown: bandwidth up to the ridge, the matmul rate from there on.
function roofs(rows) {
  const gbs = report.ceilings.copy_gb_s;
  if (!gbs || !rows.length) return [];
  const low = Math.min(...rows.map((r) => r.intensity)) / 2;
  const points = [];
  const rates = [];
  for (const dtype of distinct(rows, "dtype")) {
    const rate = report.ceilings.tflop_s[dtype];
    if (!rate) continue;
    const ridge = rate * 1000 / gbs, high = Math.max(ridge * 3, Math.max(...rows.map((r) => r.intensity)) * 2);
    const name = SHORT[dtype] || dtype;
    rates.push(`${name} ${digits(rate, 3)}`);
    points.push({ name, intensity: low, tflops: low * gbs / 1000 }, { name, intensity: ridge, tflops: rate }, { name, intensity: high, tflops: rate, last: true });
  }
  // Roofs lie close together, so one label names them all.
  const tops = points.filter((p) => p.last).sort((a, b) => b.tflops - a.tflops);
  if (tops.length) tops[0].said = `${rates.join(", ")} TFLOP/s`;
  return points;
}

function parityRows() {
  const rows = chosen().filter((r) => r.role !== "control" && r.mae !== null);
  const best = bestOf(rows);
  return rows.map((r) => ({ ...r, kind: kindOf(r, best) }))
    .sort((a, b) => (a.kind === OTHERS ? 0 : 1) - (b.kind === OTHERS ? 0 : 1));
}

const MOST_CURVES = 6;
// Arms may differ a hundredfold: each is drawn about its own median, which its name says.
const named = (record) => `${record.implementation} ${timeOf(record.median_ms)}`;

function sampleRows(caseId) {
  const all = report.records.filter((r) => r.case_id === caseId && report.samples[r.index]);
  const fastest = all.filter((r) => r.role === "baseline").sort((a, b) => a.median_ms - b.median_ms);
  const candidates = all.filter((r) => r.role === "candidate");
  const curves = [...candidates, ...fastest].slice(0, MOST_CURVES);
  const rows = curves.flatMap((r) => {
    const quantiles = report.samples[r.index];
    return quantiles.map((steps, i) => ({ who: named(r), role: r.role, off: report.grain * steps, time: timeOf(r.median_ms * (1 + report.grain * steps)), share: i / (quantiles.length - 1) }));
  });
  // A single call that was interrupted would press all others together.
  const middle = rows.filter((r) => r.share >= 0.02 && r.share <= 0.95).map((r) => r.off);
  const offDomain = [Math.min(-0.005, ...middle), Math.max(0.005, ...middle)];
  return { rows, names: curves.map(named), offDomain, left: all.length - curves.length };
}
