// Lines over time, drawn as SVG.

import { h, s } from "./dom.js";

/** A small line without axes. */
export function spark(values, width = 96, height = 22) {
  const most = Math.max(...values, 0);
  const svg = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  if (!most || values.length < 2) {
    svg.append(s("path", { class: "spark-none", d: `M0 ${height - 2}H${width}` }));
    return svg;
  }
  const points = values.map((each, n) => [(n / (values.length - 1)) * width, height - 2 - (each / most) * (height - 4)]);
  const line = points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  svg.append(s("path", { class: "area", d: `${line}L${width} ${height}L0 ${height}Z` }), s("path", { class: "line", d: line }));
  return svg;
}

/**
 * A line with axes.  points: [[seconds since 1970, value]]; shown: how a value is written.
 */
export function chart(points, { shown, label, step = 1000, width = 640, height = 150 }) {
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const box = { left: 56, right: width - 8, top: 10, bottom: height - 22 };
  const values = points.map((each) => each[1] ?? 0);
  const most = nice(Math.max(...values, 0), step);
  for (const part of [0, 0.5, 1]) {
    const y = box.bottom - part * (box.bottom - box.top);
    svg.append(s("path", { class: "grid", d: `M${box.left} ${y}H${box.right}` }),
      s("text", { class: "axis", x: box.left - 8, y: y + 4, "text-anchor": "end" }, shown(most * part)));
  }
  if (points.length > 1) {
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    const x = (at) => box.left + ((at - first) / (last - first || 1)) * (box.right - box.left);
    const y = (value) => box.bottom - ((value ?? 0) / most) * (box.bottom - box.top);
    const line = points.map(([at, value], n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    svg.append(s("path", { class: "area", d: `${line}L${box.right} ${box.bottom}L${box.left} ${box.bottom}Z` }),
      s("path", { class: "line", d: line }));
    for (const [at, anchor] of [[first, "start"], [last, "end"]]) {
      svg.append(s("text", { class: "axis", x: x(at), y: height - 6, "text-anchor": anchor }, clock(at)));
    }
  }
  return h("figure", { class: "figure" }, h("figcaption", {}, label), svg);
}

/** The end of an axis: a round number, in the units that it is shown with. */
function nice(most, step) {
  if (most <= 0) return 1;
  if (step === 1024) return 2 ** Math.ceil(Math.log2(most));
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= most);
}

function clock(seconds) {
  return new Date(seconds * 1000).toTimeString().slice(0, 8);
}
