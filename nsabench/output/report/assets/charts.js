"use strict";
// The charts of the page of a run.
const MOST_INTERVALS = 120;
const selected = { series: null, caseId: null };

function drawSpeedups() {
  const rows = candidateRows();
  const lengths = distinct(rows, "length").length;
  const sorted = rows.filter((r) => r.speedup !== null);
  const shown = sorted.slice(0, MOST_INTERVALS).map((r) => ({ ...r, row: wrapped(`${r.short || r.label}${r.caution ? " †" : ""}`) }));
  const marks = [{ at: 1, what: "equal" }, { at: report.margin, what: `margin ${report.margin}` }];
  const note = document.querySelector('[data-chart="intervals"] figcaption');
  if (note) {
    note.dataset.full ??= note.textContent;
    note.textContent = note.dataset.full + (sorted.length > shown.length ? ` The first ${shown.length} of ${sorted.length} cases; filter to see others.` : "");
  }
  return [
    drawChart("heat", { rows }, { ...heatOf("row", "length", lengthTitle(rows), "ascending", "speed-up"), ...rowsOf(rows, 30) }, { minWidth: 150 + lengths * 58, select: showCase }),
    drawChart("intervals", { rows: shown, marks }, { ...rowsOf(shown, 17) }, { select: showCase }),
  ];
}

function drawTime() {
  const groups = seriesOf(chosen().filter((r) => r.role !== "control"));
  const records = groups.get(selected.series) || [];
  const lengths = distinct(records, "length").sort((a, b) => a - b);
  const rows = timeRows(records);
  // Each layer its own: one that is left with nothing is left out.
  const datasets = {
    rows,
    others: rows.filter((r) => r.kind === OTHERS),
    least: rows.filter((r) => r.kind === LEAST),
    main: rows.filter((r) => r.kind !== OTHERS && r.kind !== LEAST),
    spread: rows.filter((r) => r.p20_ms !== null),
  };
  return drawChart("time", datasets, { ...kinds(true, records), lengths, lengthTitle: lengthTitle(records), timeLabel: TIME_LABEL }, { select: showCase });
}

function drawSamples() {
  const { rows, names, offDomain, left } = sampleRows(selected.caseId);
  const sampleColours = names.map((_, i) => PALETTE[i % PALETTE.length]);
  const of = report.records.find((r) => r.case_id === selected.caseId);
  const where = document.getElementById("samples-case");
  if (where && of) where.textContent = `${of.label}.` + (left > 0 ? ` The candidates and fastest baselines; ${left} more in the table.` : "");
  drawCaseTable();
  return drawChart("samples", { rows }, { sampleNames: names, sampleColours, offDomain });
}

function drawRoofline() {
  const rows = rooflineRows();
  return drawChart("roofline", { rows, roof: roofs(rows) }, kinds(false, rows), { select: showCase });
}

function drawParity() {
  const all = parityRows();
  const rows = all.filter((r) => r.mae > 0);
  const exact = all.length - rows.length;
  const note = document.getElementById("parity-note");
  if (note) note.textContent = exact ? `${exact} outputs without any error are not on this logarithmic axis.` : "";
  const marks = distinct(all, "tolerance").map((at) => ({ at, what: `tolerance ${at}` }));
  const lengths = distinct(rows, "length").sort((a, b) => a - b);
  return drawChart("parity", { rows, marks }, { ...kinds(false, rows), lengths, lengthTitle: lengthTitle(rows) }, { select: showCase });
}

async function drawAll() {
  fillPickers();
  await Promise.all([...drawSpeedups(), drawTime(), drawSamples(), drawRoofline(), drawParity()]);
  countDrawn();
}
