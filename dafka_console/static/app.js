// The frame around the pages: which one is shown, what the keyboard does, and news.

import { h, link, put, refocused } from "./dom.js";
import { byteRate, count, moment, short } from "./format.js";
import * as groups from "./page_groups.js";
import * as health from "./page_health.js";
import * as overview from "./page_overview.js";
import * as produce from "./page_produce.js";
import * as queries from "./page_queries.js";
import * as records from "./page_records.js";
import * as topic from "./page_topic.js";
import * as topics from "./page_topics.js";

const PAGES = [
  { path: "", name: "Map", key: "m", page: overview },
  { path: "topics", name: "Topics", key: "t", page: topics },
  { path: "queries", name: "Queries", key: "q", page: queries },
  { path: "groups", name: "Groups", key: "g", page: groups },
  { path: "produce", name: "Produce", key: "p", page: produce },
  { path: "health", name: "Health", key: "h", page: health },
];
const OTHERS = { topic: { page: topic, within: "topics" }, records: { page: records, within: "topics" } };

const [nav, bar, away, main, help] = ["nav", "bar", "away", "page", "help"].map((id) => document.getElementById(id));
let shown = null;
let paused = false;
let [news, stream] = [null, null];
let [broken, heard, gap] = [false, Date.now(), 0]; // when news came last, and how long after those before

const lost = () => !document.hidden && (broken || Date.now() - heard > Math.max(15000, 3 * gap));
const since = (us) => `since ${moment(us).slice(0, -4)}`;

/** Goes to a page; names are parts of its path. */
export function go(path, ...names) {
  location.hash = link(path, ...names);
}

function route() {
  const [path = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = PAGES.find((each) => each.path === path) || OTHERS[path] || PAGES[0];
  const names = rest.map((each) => { try { return decodeURIComponent(each); } catch { return each; } });
  put(main);
  main.scrollTop = 0;
  shown = found.page.show(main, { go, names, news: () => news });
  frame(found.within ?? path);
  document.title = `Dafka · ${names[0] || found.name || "Map"}`;
}

function frame(path) {
  put(nav, h("a", { class: "logo", href: link("") }, h("img", { src: "static/icon.svg", alt: "", width: 26, height: 26 }), h("span", {}, "Dafka")),
    PAGES.map((each) => h("a", { href: link(each.path), class: each.path === path ? "here" : "", "aria-current": each.path === path ? "page" : undefined },
      h("span", {}, each.name), h("kbd", {}, each.key))));
}

/** A sentence on what does not answer; empty if all do. */
function silent() {
  if (lost()) return `The console does not answer${news ? ` ${since(heard * 1000)}. This is what it showed last` : ""}.`;
  if (!news || (news.live && !news.away.length)) return "";
  const named = news.away.slice(0, 5).map((each) => `${short(each.store)} ${each.since_us ? since(each.since_us) : `(${each.failure})`}`).join(", ") + (news.away.length > 5 ? ", …" : "");
  if (news.live) return `${news.away.length} of ${news.stores_known} stores away: ${named}. What no other store has is grey, and cannot be read.`;
  return `No store answers${named && `; away: ${named}`}.${news.partitions ? " This is what was known last." : ""}`;
}

function tell() {
  const live = news && news.live && !lost();
  const stores = news && h("span", { class: news.stores < news.stores_known ? "stat bad" : "stat" },
    h("b", {}, news.stores < news.stores_known ? `${news.stores} of ${news.stores_known}` : String(news.stores)), news.stores_known === 1 ? " store" : " stores");
  refocused(() => put(bar,
    h("div", { class: "stats" }, news ? [
      stores,
      h("span", { class: "stat wide" }, h("b", {}, count(news.topics)), news.topics === 1 ? " topic" : " topics"),
      h("span", { class: "stat wide" }, h("b", {}, count(news.partitions)), news.partitions === 1 ? " partition" : " partitions"),
      h("span", { class: "stat accent" }, h("b", {}, count(news.rate)), h("span", { class: "wide" }, " records"), "/s"),
      h("span", { class: "stat wide" }, byteRate(news.byte_rate)),
    ] : h("span", { class: "stat" }, "connecting …")),
    h("div", { class: "tools" },
      h("button", { class: "live", title: "space", "aria-pressed": String(!paused), onclick: pause }, paused ? "paused" : lost() ? "no console" : !news ? "connecting …" : live ? "live" : "no store"),
      h("button", { title: "light or dark (d)", "aria-label": "light or dark", onclick: theme }, "◐"),
      h("button", { title: "keys (?)", "aria-label": "keys", onclick: keys }, "?"))));
  bar.dataset.live = !paused && live ? "yes" : "no";
  main.classList.toggle("stale", Boolean(news) && !live);
  if (away.textContent !== silent()) away.textContent = silent();
}

function pause() {
  paused = !paused;
  tell();
}

function theme() {
  const dark = document.documentElement.dataset.theme === "dark"
    || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("dafka-theme", document.documentElement.dataset.theme);
}

function keys() {
  const rows = [...PAGES.map((each) => [each.key, each.name]), ["/", "find"], ["↑ ↓ or k j", "choose a row"], ["Enter", "open it"],
    ["Esc", "back"], ["space", "pause, go on"], ["d", "light or dark"], ["?", "these keys"]];
  put(help, h("h2", {}, "Keys"), h("dl", {}, rows.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("button", { onclick: () => help.close() }, "Close"));
  help.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing) return;
  const page = PAGES.find((each) => each.key === event.key);
  if (shown?.key?.(event)) return;
  if (page) go(page.path);
  else if (event.key === "?") keys();
  else if (event.key === "d") theme();
  else if (event.key === " " && !event.target.matches("button, a, summary")) pause();
  else if (event.key === "Escape") history.back();
  else if (event.key === "/") main.querySelector("input[type=search]")?.focus();
  else return;
  event.preventDefault();
});

/** Asks for news, but not in the background: browsers keep six connections to a host for all tabs. */
function listen() {
  stream?.close();
  if (document.hidden) return;
  const source = stream = new EventSource("events");
  source.onmessage = (event) => {
    [broken, heard, gap] = [false, Date.now(), Date.now() - heard];
    news = JSON.parse(event.data);
    if (paused) return;
    tell();
    shown?.tick?.(news);
  };
  source.onerror = () => {
    broken = true;
    tell();
    if (source.readyState === EventSource.CLOSED) setTimeout(() => source === stream && listen(), 2000);
  };
}

const kept = localStorage.getItem("dafka-theme");
if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  [broken, heard, gap] = [false, Date.now(), 0];
  listen();
});
tell();
route();
listen();
setInterval(() => lost() && tell(), 1000);
