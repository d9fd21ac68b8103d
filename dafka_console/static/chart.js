// Lines over time, drawn as SVG, and the choice of their window.

import { h, put, s } from "./dom.js";

const WINDOWS = { "10m": [600, "10 minutes"], "6h": [21600, "6 hours"], "7d": [604800, "7 days"] };
const POINTS = 200;

/** The chosen window, a parameter of the API; it stays for other pages and visits. */
export const chosen = () => (localStorage.getItem("dafka-window") in WINDOWS ? localStorage.getItem("dafka-window") : "10m");

/** Buttons that choose the window of the charts on a page. */
export function choice(changed) {
  const group = h("div", { class: "choice", role: "group", "aria-label": "Charts of the last" });
  const draw = () => put(group, Object.entries(WINDOWS).map(([name, [, title]]) => h("button", {
    "aria-pressed": String(name === chosen()),
    onclick: () => {
      localStorage.setItem("dafka-window", name);
      draw();
      group.querySelector("[aria-pressed=true]").focus();
      changed();
    },
  }, title)));
  draw();
  return group;
}

/** A small line without axes. */
export function spark(values, width = 96, height = 22) {
  const most = Math.max(...values, 0);
  const svg = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const points = values.map((each, n) => [width - (values.length - 1 - n) * (width / 29), height - 2 - (each / most) * (height - 4)]);
  if (most && values.length > 1) svg.append(...line([points], height));
  else svg.append(s("path", { class: "spark-none", d: `M0 ${height - 2}H${width}` }));
  return svg;
}

/**
 * A line with axes, from the beginning of the chosen window until now.
 * points: [[seconds since 1970, value]]; shown: how a value is written.
 */
export function chart(points, { shown, label, step = 1000, width = 640, height = 150 }) {
  const [seconds, title] = WINDOWS[chosen()];
  const values = points.map(([, value]) => value);
  const [most, last] = [Math.max(...values, 0), values.length ? shown(values[values.length - 1]) : "none"];
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}, last ${title}: now ${last}, at most ${shown(most)}` });
  const box = { left: 56, right: width - 8, top: 10, bottom: height - 22 };
  const end = nice(most, step);
  for (const part of [0, 0.5, 1]) {
    const y = box.bottom - part * (box.bottom - box.top);
    svg.append(s("path", { class: "grid", d: `M${box.left} ${y}H${box.right}` }),
      s("text", { class: "axis", x: box.left - 8, y: y + 4, "text-anchor": "end" }, shown(end * part)));
  }
  const until = points.length ? points[points.length - 1][0] : Date.now() / 1000;
  const x = (at) => box.right - ((until - at) / seconds) * (box.right - box.left);
  const y = (value) => box.bottom - (value / end) * (box.bottom - box.top);
  const parts = [];
  points.forEach(([at, value], n) => {
    // Nothing was measured in between: no line pretends so.
    if (!n || at - points[n - 1][0] > (10 * seconds) / POINTS) parts.push([]);
    parts[parts.length - 1].push([x(at), y(value)]);
  });
  svg.append(...line(parts, box.bottom));
  for (const [part, anchor] of [[1, "start"], [0.5, "middle"], [0, "end"]]) {
    svg.append(s("text", { class: "axis", x: x(until - part * seconds), y: height - 6, "text-anchor": anchor }, clock(until - part * seconds, seconds)));
  }
  const said = h("span", { class: "faint" }, `now ${last}, at most ${shown(most)}`);
  svg.addEventListener("pointermove", (event) => {
    const at = (event.offsetX / svg.clientWidth) * width;
    const near = points.reduce((best, each) => (Math.abs(x(each[0]) - at) < Math.abs(x(best[0]) - at) ? each : best), points[0]);
    if (near) said.textContent = `${clock(near[0], seconds)}: ${shown(near[1])}`;
  });
  return h("figure", { class: "figure" }, h("figcaption", {}, label, said), svg);
}

function line(parts, bottom) {
  const path = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  const area = (points) => `${path(points)}L${points[points.length - 1][0].toFixed(1)} ${bottom}L${points[0][0].toFixed(1)} ${bottom}Z`;
  return [s("path", { class: "area", d: parts.map(area).join("") }), s("path", { class: "line", d: parts.map((each) => (each.length > 1 ? path(each) : `${path(each)}h1`)).join("") })];
}

/** The end of an axis: a round number, in the units that it is shown with. */
function nice(most, step) {
  if (most <= 0) return 1;
  if (step === 1024) return 2 ** Math.ceil(Math.log2(most));
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= most);
}

function clock(at, seconds) {
  const date = new Date(at * 1000);
  const time = date.toTimeString().slice(0, seconds > 600 ? 5 : 8);
  return seconds > 86400 ? `${date.toLocaleDateString("en-CA").slice(5)} ${time}` : time;
}
