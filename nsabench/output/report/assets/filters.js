"use strict";
// One row of selects narrows every chart and table. Only what differs within the run is offered.
const DIMENSIONS = [
  ["gpu", "GPU"], ["op", "op"], ["dtype", "dtype"], ["direction", "direction"], ["distribution", "distribution"],
  ["mode", "mode"], ["regime", "regime"], ["shape", "shape"],
];
const filters = {};

// `single`: one candidate at a time.
function buildFilters(changed, { single = true } = {}) {
  const form = document.getElementById("filters");
  form.addEventListener("submit", (event) => event.preventDefault());
  const judged = report.records.filter((r) => r.role === "candidate");
  // A comparison may be one of baselines alone.
  const candidates = distinct(judged.length ? judged : report.records, "implementation");
  if (candidates.length > 1 && single) addSelect(form, "candidate", "candidate", candidates, false, changed);
  else if (candidates.length) filters.candidate = candidates[0];
  for (const [key, name] of DIMENSIONS) {
    const values = distinct(report.records, key);
    if (values.length > 1) addSelect(form, key, name, values, true, changed);
  }
  form.hidden = !form.children.length;
}

function addSelect(form, key, name, values, all, changed) {
  const label = document.createElement("label");
  label.append(name + " ");
  const select = document.createElement("select");
  select.id = `filter-${key}`;
  if (all) select.add(new Option("all", ""));
  for (const value of values) select.add(new Option(value, value));
  filters[key] = select.value;
  select.addEventListener("change", () => { filters[key] = select.value; changed(); });
  label.append(select);
  form.append(label);
}

function chosen() {
  return report.records.filter((record) =>
    DIMENSIONS.every(([key]) => !filters[key] || String(record[key]) === filters[key]));
}

// The name of a row of cases that differ only in length: the sizes that vary here, and what else does.
function rowNames(records) {
  const varying = DIMENSIONS.map(([key]) => key)
    .filter((key) => key !== "shape" && distinct(records, key).length > 1);
  const common = new Map(distinct(records, "op").map((op) => {
    const shapes = distinct(records.filter((r) => r.op === op), "shape").map((shape) => shape.split(" "));
    return [op, shapes.length > 1 ? shapes[0].filter((size) => shapes.every((own) => own.includes(size))) : []];
  }));
  const sizes = (record) => record.shape.split(" ").filter((size) => !common.get(record.op).includes(size));
  return (record) => [...sizes(record), ...varying.map((key) => said(record, key)).filter(Boolean)].join(" ");
}

// What varies, left out where it is the usual: forward, the first distribution of the op.
function said(record, key) {
  const value = record[key];
  if (key === "mode") return value === "graph" ? value : "";
  if (key === "direction") return value === "forward" ? "" : value;
  if (key === "distribution") return value === report.usual[record.op] ? "" : value;
  return SHORT[value] || value;
}
