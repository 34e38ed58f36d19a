"use strict";
// A chart's points are read out below it: by the pointer, or with the arrow keys once the chart has the focus.
document.addEventListener("DOMContentLoaded", () => {
  for (const figure of document.querySelectorAll("figure")) {
    const chart = figure.querySelector("svg"), reading = figure.querySelector(".reading");
    const points = chart ? [...chart.querySelectorAll(".hit")] : [];
    if (!points.length || !reading) continue;
    const invitation = reading.textContent;
    let place = -1;
    const show = (next) => {
      if (place >= 0) points[place].classList.remove("at");
      place = next;
      if (place >= 0) points[place].classList.add("at");
      reading.textContent = place < 0 ? invitation : points[place].querySelector("title").textContent;
    };
    points.forEach((point, index) => point.addEventListener("pointerenter", () => show(index)));
    chart.addEventListener("pointerleave", () => show(-1));
    chart.addEventListener("blur", () => show(-1));
    chart.addEventListener("keydown", (event) => {
      const last = points.length - 1;
      const next = {
        ArrowRight: Math.min(place + 1, last), ArrowDown: Math.min(place + 1, last), ArrowLeft: Math.max(place - 1, 0),
        ArrowUp: Math.max(place - 1, 0), Home: 0, End: last, Escape: -1,
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      show(next);
    });
  }
});
// Print what is folded, too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
