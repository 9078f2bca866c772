"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("charts").textContent);
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, displayModeBar: false, responsive: true, showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "", typesetMath: false };
  root.classList.remove("plain");

  // Theme: the system decides until the button is used; the choice is kept where the browser lets a file keep anything.
  const recall = () => { try { return localStorage.getItem("spurless-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("spurless-theme", theme); } catch { /* a choice for this visit only */ } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : media.matches);
  const toggle = document.getElementById("theme");

  // A colour is written "@name" and stands for the CSS variable --name; only keys that hold colours are read so.
  const themed = (value, key, style) => {
    if (Array.isArray(value)) return value.map((item) => themed(item, key, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, k, style)]));
    if (typeof value !== "string" || !value.startsWith("@") || !/color(s|scale|way)?$/.test(key)) return value;
    return value === "@clear" ? "rgba(0,0,0,0)" : style.getPropertyValue("--" + value.slice(1)).trim();
  };

  const draw = (width) => {
    const style = getComputedStyle(root);
    const family = getComputedStyle(document.body).fontFamily;
    for (const [id, spec] of Object.entries(figures)) {
      const place = document.getElementById(id);
      if (!place) continue;
      const { data, layout } = themed(spec, "", style);
      layout.font.family = family;
      layout.height = place.clientHeight;
      if (width) layout.width = Math.min(width, place.clientWidth); else layout.autosize = true;
      Plotly.react(place, data, layout, config);
    }
  };
  const paint = () => { toggle.setAttribute("aria-pressed", String(isDark())); draw(); };

  const stored = recall();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    keep(root.dataset.theme);
    paint();
  });
  media.addEventListener("change", paint);
  paint();

  // Paper is light and narrow.
  let before;
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; draw(640); });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    draw();
  });

  // Sorting: numbers by data-value, text by the alphabet; a cell without a number stays last.
  const worth = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? (cell.dataset.value === "" ? null : Number(cell.dataset.value)) : cell.textContent.trim();
  };
  const order = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [worth(row, column), row]);
        rows.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : up ? order(a, b) : order(b, a)));
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
