(() => {
  "use strict";
  // Text from records only ever becomes text nodes: no name can turn into markup.
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 100;
  const table = data.table;
  const state = { sort: null, descending: false, search: "", options: {}, status: "", shown: PAGE };

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // A row is [status, options, numbers, tags, outcome, command]; a number is [raw, text, change, better].
  const [STATUS, OPTIONS, NUMBERS, TAGS, OUTCOME, COMMAND] = [0, 1, 2, 3, 4, 5];
  const haystack = table.rows.map((row) => [row[STATUS], ...row[OPTIONS], row[OUTCOME], ...row[TAGS].map((tag) => tag[1])].join(" ").toLowerCase());

  function chosen() {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = [...table.rows.keys()].filter((n) => {
      const row = table.rows[n];
      if (state.status && row[STATUS] !== state.status) return false;
      for (const [axis, option] of Object.entries(state.options)) if (row[OPTIONS][axis] !== option) return false;
      return words.every((word) => haystack[n].includes(word));
    });
    return state.sort === null ? kept : kept.sort(compare);
  }

  function compare(a, b) {
    const [x, y] = [value(a), value(b)];
    // What is unknown comes last whichever way the rest is sorted.
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
    return (state.descending ? -order : order) || a - b;
  }

  function value(n) {
    const axes = table.axes.length;
    if (state.sort < axes) return table.rows[n][OPTIONS][state.sort];
    if (state.sort === axes + table.columns.length) return [table.rows[n][STATUS], ...table.rows[n][TAGS].map((tag) => tag[1])].join(" ");
    const number = table.rows[n][NUMBERS][state.sort - axes];
    return number ? number[0] : null;
  }

  function draw() {
    const rows = chosen();
    body.replaceChildren(...rows.slice(0, state.shown).map((n) => drawRow(table.rows[n])));
    count.textContent = rows.length === table.rows.length
      ? `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "cell" : "cells"}`
      : `${rows.length.toLocaleString("en")} of ${table.rows.length.toLocaleString("en")} cells`;
    const rest = rows.length - state.shown;
    more.hidden = rest <= 0;
    more.textContent = `Show ${Math.min(rest, PAGE * 5).toLocaleString("en")} more of ${rest.toLocaleString("en")}`;
    headers.forEach((header, n) => header.setAttribute("aria-sort",
      n !== state.sort ? "none" : state.descending ? "descending" : "ascending"));
  }

  function drawRow(row) {
    const cells = row[OPTIONS].map((option) => element("td", {}, option));
    if (row[STATUS] === "ok") {
      cells.push(...row[NUMBERS].map(drawNumber));
      cells.push(element("td", { class: "remark" }, ...row[TAGS].map(([kind, text]) => element("span", { class: `tag ${kind}` }, text))));
    } else {
      const tag = element("span", { class: `tag ${row[STATUS]}` }, row[STATUS]);
      const tags = row[TAGS].map(([kind, text]) => element("span", { class: `tag ${kind}` }, text));
      cells.push(element("td", { class: "reason", colspan: table.columns.length + 1 }, tag, ...tags, row[OUTCOME]));
    }
    cells.push(element("td", { class: "again" }, row[COMMAND] ? copier(row[COMMAND]) : ""));
    return element("tr", row[TAGS].some(([kind]) => kind === "baseline") ? { class: "baseline" } : {}, ...cells);
  }

  function drawNumber([raw, text, change, better]) {
    const cell = element("td", { class: raw === null ? "n unknown" : "n" }, text);
    if (change) cell.append(element("span", { class: `change ${better === null ? "" : better ? "better" : "worse"}` }, change));
    return cell;
  }

  function copier(command) {
    const button = element("button", { class: "copy", type: "button", title: command, "aria-label": `Copy ${command}` }, "Copy");
    button.addEventListener("click", () => copy(command, button));
    return button;
  }

  async function copy(text, button) {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page from a disk may have no clipboard; the older way works there.
      const area = element("textarea", { class: "unseen" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  function select(name, options, change) {
    const box = element("select", {}, element("option", { value: "" }, "all"),
      ...options.map((option, n) => element("option", { value: String(n) }, option)));
    box.addEventListener("change", () => { change(box.value === "" ? null : options[Number(box.value)]); state.shown = PAGE; draw(); });
    return element("label", {}, name, box);
  }

  const headers = [...table.axes, ...table.columns, "remark"].map((name, n) => {
    const button = element("button", { type: "button" }, name);
    const isNumber = n >= table.axes.length && n < table.axes.length + table.columns.length;
    button.addEventListener("click", () => {
      if (state.sort === n && state.descending) { state.sort = null; state.descending = false; }
      else { state.descending = state.sort === n; state.sort = n; }
      draw();
    });
    return element("th", { scope: "col", class: isNumber ? "n" : "" }, button);
  });
  const body = element("tbody");
  const unsorted = element("th", { scope: "col" }, element("span", { class: "unseen" }, "command"));
  document.getElementById("cells").append(element("thead", {}, element("tr", {}, ...headers, unsorted)), body);

  const count = element("span", { class: "count", role: "status" });
  const search = element("input", { type: "search", placeholder: "Any word of a row" });
  search.addEventListener("input", () => { state.search = search.value; state.shown = PAGE; draw(); });
  const filters = table.axes.map((axis, n) => {
    const options = [...new Set(table.rows.map((row) => row[OPTIONS][n]))];
    return options.length > 1 ? select(axis, options, (option) => { if (option === null) delete state.options[n]; else state.options[n] = option; }) : null;
  });
  const statuses = [...new Set(table.rows.map((row) => row[STATUS]))];
  if (statuses.length > 1) filters.push(select("status", statuses, (option) => { state.status = option ?? ""; }));
  document.getElementById("tools").append(element("label", { class: "search" }, "Filter", search), ...filters.filter(Boolean), count);
  const more = document.getElementById("more");
  more.addEventListener("click", () => { state.shown += PAGE * 5; draw(); });
  draw();

  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", () => copy(document.getElementById(button.dataset.copies).textContent, button));
  }

  for (const details of document.querySelectorAll("details[data-figure]")) {
    const { fields, rows } = data.figures[details.dataset.figure];
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const head = element("tr", {}, ...fields.map((name) => element("th", { scope: "col" }, name)));
      const lines = rows.map((row) => element("tr", {}, ...row.map((cell) => typeof cell === "number"
        ? element("td", { class: "n" }, cell.toLocaleString("en", { maximumSignificantDigits: 5 }))
        : element("td", {}, cell ?? ""))));
      details.append(element("div", { class: "scroll", tabindex: "0" },
        element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines))));
    });
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  async function drawCharts() {
    const theme = data.themes[dark.matches ? "dark" : "light"];
    const isNarrow = document.querySelector("main").clientWidth < 560;
    const config = { ...theme, legend: { ...theme.legend, columns: isNarrow ? 3 : 0 } };
    for (const [key, figure] of Object.entries(data.figures)) {
      // `ast` evaluates expressions without building code from text, which the page's policy forbids.
      await vegaEmbed(`#chart-${key}`, figure.spec, { actions: false, renderer: "svg", ast: true, config, tooltip: { theme: "custom" } });
    }
    document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
  }
  dark.addEventListener("change", drawCharts);
  drawCharts();
})();
