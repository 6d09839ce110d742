"use strict";
// Sortable, searchable tables. Text of the run only ever enters through `textContent`.
const PAGE = 30;

function dataTable(host, name, columns, rows, options = {}) {
  let order = { key: null, down: false };
  let shown = PAGE;
  let query = "";
  host.replaceChildren();

  const tools = document.createElement("div");
  tools.className = "tools";
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "filter: words that must all occur";
  search.setAttribute("aria-label", `Filter the table of ${name}`);
  const count = document.createElement("span");
  count.className = "quiet";
  count.setAttribute("role", "status");
  tools.append(search, count);
  if (!options.bare) host.append(tools);

  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Table of ${name}`);
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  scroll.append(table);
  host.append(scroll);
  const more = document.createElement("button");
  more.type = "button";
  host.append(more);

  const details = columns.filter((c) => c.detail);
  columns = columns.filter((c) => !c.detail);
  const said = (column, row) => String((column.text ? column.text(row) : row[column.key]) || "–");
  const opened = new Set();

  for (const column of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (column.number) cell.className = "num";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.title || column.key;
    const about = report.columns[column.key];
    if (about) button.title = about.meaning + (about.unit && about.unit !== "1" ? ` (${about.unit})` : "");
    button.addEventListener("click", () => {
      order = { key: column.key, down: order.key === column.key ? !order.down : Boolean(column.number) };
      draw();
    });
    cell.append(button);
    head.append(cell);
  }
  if (details.length) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = "more";
    head.append(cell);
  }

  // What has no room in a row, below it.
  function unfolded(row) {
    const line = document.createElement("tr");
    line.className = "details";
    const cell = line.insertCell();
    cell.colSpan = columns.length + 1;
    const list = document.createElement("dl");
    list.className = "facts";
    for (const column of details) {
      if (said(column, row) === "–") continue;
      list.append(
        Object.assign(document.createElement("dt"), { textContent: column.title || column.key }),
        Object.assign(document.createElement("dd"), { textContent: said(column, row) }),
      );
    }
    cell.append(list);
    return line;
  }

  function folder(row, line) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fold";
    button.setAttribute("aria-label", `More of ${said(columns[0], row)}`);
    const show = () => {
      button.textContent = opened.has(row) ? "−" : "+";
      button.setAttribute("aria-expanded", String(opened.has(row)));
    };
    button.addEventListener("click", () => {
      if (opened.delete(row)) line.nextSibling.remove();
      else { opened.add(row); line.after(unfolded(row)); }
      show();
    });
    show();
    return button;
  }

  const texts = rows.map((row) => [...columns, ...details].map((c) => said(c, row)).join(" ").toLowerCase());

  function matching() {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = rows.filter((_, i) => words.every((word) => texts[i].includes(word)));
    if (order.key === null) return matches;
    const sign = order.down ? -1 : 1;
    return matches.slice().sort((a, b) => {
      const x = a[order.key], y = b[order.key];
      // What does not exist comes last, whichever way the rest is sorted.
      if (x === null || x === undefined || x === "") return y === null || y === undefined || y === "" ? 0 : 1;
      if (y === null || y === undefined || y === "") return -1;
      return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y)));
    });
  }

  function draw() {
    const matches = matching();
    body.replaceChildren(...matches.slice(0, shown).flatMap((row) => {
      const line = document.createElement("tr");
      for (const column of columns) {
        const cell = line.insertCell();
        if (column.number) cell.className = "num";
        if (column.wide) cell.className = "evidence";
        if (column.wrap) cell.className = "wrap";
        cell.dataset.title = column.title || column.key;
        if (column.fill) column.fill(cell, row);
        else cell.textContent = said(column, row);
        cell.classList.toggle("nothing", cell.textContent === "–");
      }
      if (details.length) line.insertCell().append(folder(row, line));
      return opened.has(row) ? [line, unfolded(row)] : [line];
    }));
    [...head.cells].slice(0, columns.length).forEach((cell, i) => {
      const sorted = columns[i].key === order.key;
      cell.ariaSort = sorted ? (order.down ? "descending" : "ascending") : "none";
    });
    count.textContent = matches.length === rows.length ? `${rows.length} rows` : `${matches.length} of ${rows.length} rows`;
    more.hidden = matches.length <= shown;
    more.textContent = `show all ${matches.length} rows`;
  }
  search.addEventListener("input", () => { query = search.value; draw(); });
  more.addEventListener("click", () => { shown = Infinity; draw(); });
  draw();
}

// What is to be borne in mind beside the verdict or ratio of a cell.
function bear(cell, caution) {
  if (caution) cell.append(" ", Object.assign(document.createElement("small"), { className: "bear", textContent: caution }));
}

function tag(cell, word) {
  if (!word) { cell.textContent = "–"; return; }
  const span = document.createElement("span");
  span.className = `tag ${/^[a-z_]+$/.test(word) ? word : ""}`;
  span.textContent = (SYMBOL[word] ? SYMBOL[word] + " " : "") + word;
  cell.append(span);
}
