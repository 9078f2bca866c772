"use strict";
(() => {
  // A chart in a closed <details> is resized when it is opened.
  const detailsElements = [...document.querySelectorAll("details")];
  const resizeCharts = (details) => {
    for (const chart of details.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(chart);
  };
  for (const details of detailsElements) details.addEventListener("toggle", () => { if (details.open) resizeCharts(details); });

  // CSV for download; missing if it is too long.
  const downloadButton = document.getElementById("list-button");
  const csv = JSON.parse(document.getElementById("list").textContent);
  if (downloadButton && !csv) downloadButton.remove();
  else downloadButton?.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    link.download = "suspects.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  const gallery = document.getElementById("gallery");
  if (!gallery) return;
  const byId = (id) => document.getElementById(id);
  const [label, predicted, text, only, heat] = ["by-label", "by-predicted", "by-text", "only", "heat"].map(byId);
  const [count, clear, empty, more] = ["count", "clear", "empty", "more"].map(byId);
  const cards = [...gallery.children];
  const searchText = new Map(cards.map((card) => [card, [...card.querySelectorAll(".row, .text, dd")].map((part) => part.textContent.replace(/\s+/g, " ")).join(" ").toLowerCase()]));
  const step = Number(gallery.dataset.step);
  let visibleCount = step;

  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  const formatNumber = (n) => n.toLocaleString("en");

  const matches = (card) =>
    (!label.value || card.dataset.label === label.value) &&
    (!predicted.value || card.dataset.predicted === predicted.value) &&
    (!pressed(only) || card.dataset.suspected === "yes") &&
    searchText.get(card).includes(text.value.replace(/\s+/g, " ").trim().toLowerCase());

  const apply = () => {
    const matching = cards.filter(matches);
    const matchingSet = new Set(matching);
    for (const card of cards) card.classList.toggle("filtered-out", !matchingSet.has(card));
    matching.forEach((card, index) => card.classList.toggle("later", index >= visibleCount));
    const filtered = matching.length < cards.length;
    count.textContent = `Showing ${formatNumber(Math.min(visibleCount, matching.length))} of ${formatNumber(matching.length)}` + (filtered ? ` that match, ${formatNumber(cards.length)} in total` : "");
    clear.hidden = !(label.value || predicted.value || text.value || pressed(only));
    empty.hidden = matching.length > 0;
    more.hidden = matching.length <= visibleCount;
    more.textContent = `Show ${formatNumber(Math.min(step, matching.length - visibleCount))} more`;
    return matching;
  };
  const restart = () => { visibleCount = step; apply(); };
  const reset = () => { label.value = predicted.value = text.value = ""; press(only, false); };

  label.addEventListener("change", restart);
  predicted.addEventListener("change", restart);
  text.addEventListener("input", restart);
  only.addEventListener("click", () => { press(only, !pressed(only)); restart(); });
  clear.addEventListener("click", () => { reset(); restart(); label.focus(); });
  more.addEventListener("click", () => {
    const first = visibleCount;
    visibleCount += step;
    apply()[first]?.focus({ preventScroll: true });
  });

  // Heat maps: of one example, or of all.
  const showHeat = (button, on) => { press(button, on); button.closest(".card").classList.toggle("heat-visible", on); };
  const heatToggles = [...gallery.querySelectorAll(".heat-toggle")];
  if (!heatToggles.length) heat?.remove();  // they were left out
  for (const button of heatToggles) {
    button.addEventListener("click", () => {
      showHeat(button, !pressed(button));
      press(heat, heatToggles.every(pressed));
    });
  }
  heat?.addEventListener("click", () => {
    const on = !pressed(heat);
    press(heat, on);
    for (const button of heatToggles) showHeat(button, on);
  });

  // A link to an example makes it visible, even if it is filtered out.
  const reveal = () => {
    const card = /^#row-\d+$/.test(location.hash) ? byId(location.hash.slice(1)) : null;
    if (!card) return;
    if (card.classList.contains("filtered-out")) reset();
    visibleCount = Math.max(visibleCount, Math.ceil((cards.filter(matches).indexOf(card) + 1) / step) * step);
    apply();
    card.scrollIntoView({ block: "center" });
    card.focus({ preventScroll: true });
  };
  window.addEventListener("hashchange", reveal);
  for (const link of document.querySelectorAll('a[href^="#row-"]')) link.addEventListener("click", () => { if (link.hash === location.hash) reveal(); });
  apply();
  reveal();
})();
