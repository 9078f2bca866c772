"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("charts").textContent);
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, displayModeBar: false, responsive: true, showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "", typesetMath: false };
  root.classList.remove("plain");

  // Theme: that of the system until the button is used; the choice is stored if the browser allows it for files.
  const loadTheme = () => { try { return localStorage.getItem("spurless-theme"); } catch { return null; } };
  const storeTheme = (theme) => { try { localStorage.setItem("spurless-theme", theme); } catch { /* not stored */ } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : media.matches);
  const toggle = document.getElementById("theme");

  // A colour "@name" is the CSS variable --name; only values of colour keys are replaced.
  const withTheme = (value, key, style) => {
    if (Array.isArray(value)) return value.map((item) => withTheme(item, key, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, withTheme(v, k, style)]));
    if (typeof value !== "string" || !value.startsWith("@") || !/color(s|scale|way)?$/.test(key)) return value;
    return value === "@clear" ? "rgba(0,0,0,0)" : style.getPropertyValue("--" + value.slice(1)).trim();
  };

  const draw = (width) => {
    if (!window.Plotly) return;
    const style = getComputedStyle(root);
    const family = getComputedStyle(document.body).fontFamily;
    for (const [id, spec] of Object.entries(figures)) {
      const element = document.getElementById(id);
      if (!element) continue;
      const { data, layout } = withTheme(spec, "", style);
      layout.font.family = family;
      layout.height = element.clientHeight;
      if (width) layout.width = Math.min(width, element.clientWidth); else layout.autosize = true;
      const isNew = !element.classList.contains("js-plotly-plot");
      Plotly.react(element, data, layout, config);
      if (isNew) element.on("plotly_click", ({ points: [point] }) => { if (document.getElementById(`row-${point.customdata}`)) location.hash = `row-${point.customdata}`; });
    }
  };
  const applyTheme = () => { toggle.setAttribute("aria-pressed", String(isDark())); draw(); };

  const stored = loadTheme();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storeTheme(root.dataset.theme);
    applyTheme();
  });
  media.addEventListener("change", applyTheme);
  applyTheme();

  // Plotly is compressed, which makes the page less than half as large; without it, charts are text.
  const load = async (packed) => {
    try {
      const bytes = Uint8Array.from(atob(packed.textContent), (character) => character.charCodeAt(0));
      const script = document.createElement("script");
      script.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
      document.head.append(script);
      script.remove();
      draw();
    } catch {
      for (const element of document.querySelectorAll(".draw")) element.textContent = element.getAttribute("aria-label");
    }
  };
  const packed = document.getElementById("plotly");
  if (packed) load(packed);

  // Print with the light theme and a fixed width.
  let before;
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; draw(640); });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    draw();
  });

  // Sorting: numbers by data-value, text alphabetically; missing numbers are last.
  const sortValue = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? (cell.dataset.value === "" ? null : Number(cell.dataset.value)) : cell.textContent.trim();
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const ascending = header.getAttribute("aria-sort") !== "ascending";
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [sortValue(row, column), row]);
        rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : ascending ? compare(a, b) : compare(b, a)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  document.getElementById("download")?.addEventListener("click", () => {
    const lines = JSON.parse(document.getElementById("records").textContent);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines], { type: "application/x-ndjson" }));
    link.download = "records.jsonl";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
})();
