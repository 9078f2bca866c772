"use strict";
(() => {
  // Folds: a chart that was drawn while folded gets its size when it is opened; paper has no folds.
  const folds = [...document.querySelectorAll("details")];
  const refit = (fold) => {
    for (const place of fold.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(place);
  };
  for (const fold of folds) fold.addEventListener("toggle", () => { if (fold.open) refit(fold); });
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
  });
  window.addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

  // The list for download; a page whose list is too long has none.
  const save = document.getElementById("list-button");
  const lines = JSON.parse(document.getElementById("list").textContent);
  if (save && !lines) save.remove();
  else save?.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines], { type: "text/csv" }));
    link.download = "suspects.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  const gallery = document.getElementById("gallery");
  if (!gallery) return;
  const by = (id) => document.getElementById(id);
  const [label, predicted, text, only, heat] = ["by-label", "by-predicted", "by-text", "only", "heat"].map(by);
  const [count, clear, empty, more] = ["count", "clear", "empty", "more"].map(by);
  const cards = [...gallery.children];
  const words = new Map(cards.map((card) => [card, [...card.querySelectorAll(".row, .text, dd")].map((part) => part.textContent.replace(/\s+/g, " ")).join(" ").toLowerCase()]));
  const step = Number(gallery.dataset.step);
  let shown = step;

  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const written = (n) => n.toLocaleString("en");

  const fits = (card) =>
    (!label.value || card.dataset.label === label.value) &&
    (!predicted.value || card.dataset.predicted === predicted.value) &&
    (!pressed(only) || card.dataset.suspected === "yes") &&
    words.get(card).includes(text.value.replace(/\s+/g, " ").trim().toLowerCase());

  const apply = () => {
    const found = cards.filter(fits);
    const kept = new Set(found);
    for (const card of cards) card.classList.toggle("out", !kept.has(card));
    found.forEach((card, place) => card.classList.toggle("later", place >= shown));
    const filtered = found.length < cards.length;
    count.textContent = `Showing ${written(Math.min(shown, found.length))} of ${written(found.length)}` + (filtered ? ` that fit, ${written(cards.length)} in all` : "");
    clear.hidden = !(label.value || predicted.value || text.value || pressed(only));
    empty.hidden = found.length > 0;
    more.hidden = found.length <= shown;
    more.textContent = `Show ${written(Math.min(step, found.length - shown))} more`;
    return found;
  };
  const anew = () => { shown = step; apply(); };
  const reset = () => { label.value = predicted.value = text.value = ""; press(only, false); };

  label.addEventListener("change", anew);
  predicted.addEventListener("change", anew);
  text.addEventListener("input", anew);
  only.addEventListener("click", () => { press(only, !pressed(only)); anew(); });
  clear.addEventListener("click", () => { reset(); anew(); label.focus(); });
  more.addEventListener("click", () => {
    const first = shown;
    shown += step;
    apply()[first]?.focus({ preventScroll: true });
  });

  // Where the model looked: one picture at a time, or all.
  const look = (button, on) => { press(button, on); button.closest(".card").classList.toggle("looked", on); };
  const switches = [...gallery.querySelectorAll(".switch")];
  if (!switches.length) heat?.remove();  // there was no room for them
  for (const button of switches) {
    button.addEventListener("click", () => {
      look(button, !pressed(button));
      press(heat, switches.every(pressed));
    });
  }
  heat?.addEventListener("click", () => {
    const on = !pressed(heat);
    press(heat, on);
    for (const button of switches) look(button, on);
  });

  // A link to an example finds it, whatever is filtered or not yet shown.
  const reveal = () => {
    const card = /^#row-\d+$/.test(location.hash) ? by(location.hash.slice(1)) : null;
    if (!card) return;
    if (card.classList.contains("out")) reset();
    shown = Math.max(shown, Math.ceil((cards.filter(fits).indexOf(card) + 1) / step) * step);
    apply();
    card.scrollIntoView({ block: "center" });
    card.focus({ preventScroll: true });
  };
  window.addEventListener("hashchange", reveal);
  for (const link of document.querySelectorAll('a[href^="#row-"]')) link.addEventListener("click", () => { if (link.hash === location.hash) reveal(); });
  let before;
  window.addEventListener("beforeprint", () => { before = shown; shown = Infinity; apply(); });
  window.addEventListener("afterprint", () => { shown = before; apply(); });
  apply();
  reveal();
})();
